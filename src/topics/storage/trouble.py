"""What keeps a store from working as it should, in words: for `Log.trouble`, and for the log of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.model.errors import StoreClosed

if TYPE_CHECKING:
    from topics.storage.store import Store


def describe_trouble(store: Store) -> dict[str, str]:
    """In words, by what is in trouble. Called under the store's lock."""
    found = {}
    for shard in store.shards:
        error = shard.failed or shard.refusing
        if error is not None and not isinstance(error.__cause__, StoreClosed):
            found[f"WAL shard {shard.index}"] = error.message
    if store.trouble is not None:
        found["the checkpoint"] = f"the last checkpoint failed and will be tried again: {in_words(store.trouble)}"
    for name, stumble in store.stumbled.copy().items():
        found[name] = f"{name} broke off and goes on: {in_words(stumble)}"
    return found


def in_words(error: BaseException) -> str:
    """An error as text; one of the system names its second path only where there is one."""
    if isinstance(error, OSError) and error.filename is not None and error.filename2 is None:
        return f"[Errno {error.errno}] {error.strerror}: {error.filename!r}"
    return str(error) or type(error).__name__
