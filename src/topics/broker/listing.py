"""Pages of names: bytewise order, and a cursor that says after which name to go on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from topics.model.errors import InvalidRequest

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 1000


def page_of(
    names: Iterable[str], prefix: str, after: str | None, size: int, allowed: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """Names of one page, and the last of them if another page follows."""
    size = min(max(size, 1), PAGE_SIZE_MAX)
    wanted = sorted(
        name for name in names if name.startswith(prefix) and (after is None or name > after) and allowed(name)
    )
    page = wanted[:size]
    return page, page[-1] if len(wanted) > size else None


def encode_cursor(after: str) -> str:
    """Clients paste it into URLs as it is, so its alphabet needs no escapes."""
    return base64.urlsafe_b64encode(msgspec.json.encode({"after": after})).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> str | None:
    """The name to go on after; None = from the start."""
    if not cursor:
        return None
    text = cursor.rstrip("=").replace("+", "-").replace("/", "_").replace(" ", "-")
    try:
        value = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise InvalidRequest("the cursor cannot be read; leave it out to start over") from None
    after = value.get("after") if isinstance(value, dict) else None
    return after if isinstance(after, str) else None
