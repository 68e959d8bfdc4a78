"""How far a reader got, told to the server: a group in stream mode per topic, whose lag is seen like any other's, and
for which retention waits where that is asked for.

The reader's own place stays in its checkpoint or table; the group follows it and is never read from. So the first word
about an instance of a topic puts the group where the reader stands, also back, and every later one moves it on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from topics.model.errors import (
    Conflict,
    Denied,
    Forbidden,
    GroupHasMembers,
    GroupNotFound,
    InvalidRequest,
    TopicNotFound,
)

if TYPE_CHECKING:
    from topics.client.groups import Group
    from topics.client.sync import Client

ALIVE_S: Final = 600.0
"""How often a reader that does not get on says so all the same: a group that nobody uses holds nothing in the end."""


class Progress:
    def __init__(
        self,
        client: Callable[[], Client],
        group: str,
        hold: bool | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._group = group
        self._hold = hold
        """None: whether retention waits is for whoever made the group to say."""
        self._monotonic = monotonic
        self._told: dict[str, tuple[str, int, float]] = {}
        """By topic: instance, next seq, and when."""

    def tell(self, topic: str, instance: str, next_seq: int) -> None:
        """The reader is done with everything below `next_seq`. Conflict or Denied if the group is not one for that."""
        now = self._monotonic()
        known = self._told.get(topic)
        if known is not None and known[:2] == (instance, next_seq) and now - known[2] < ALIVE_S:
            return
        group = self._client().group(topic, self._group)
        try:
            if known is None or known[0] != instance or next_seq < known[1]:
                self._place(topic, group, next_seq)
            else:
                try:
                    group.commit(next_seq)
                except GroupNotFound:  # somebody dropped it
                    self._place(topic, group, next_seq)
        except (TopicNotFound, InvalidRequest):
            self._told.pop(topic, None)  # dropped, or made anew and shorter: what that means is the reader's to say
            return
        except Forbidden as error:
            raise Denied(
                f"this key may not move group {self._group!r} of topic {topic!r} ({error.message}): it needs read and "
                "write, and admin to make the group"
            ) from None
        self._told[topic] = (instance, next_seq, now)

    def _place(self, topic: str, group: Group, next_seq: int) -> None:
        """Make the group if need be, and put it there."""
        try:
            found = group.info()
        except GroupNotFound:
            group.create(mode="stream", start={"seq": next_seq}, retention_guard=bool(self._hold))
            return
        if found.mode != "stream":
            raise Conflict(
                f"group {self._group!r} of topic {topic!r} is in {found.mode} mode, and progress is told to one in "
                "stream mode: name another group"
            )
        if self._hold is not None and found.config.retention_guard != self._hold:
            config = msgspec.structs.replace(found.config, retention_guard=self._hold)
            group.create(**msgspec.to_builtins(config))
        try:
            if found.committed <= next_seq:
                group.commit(next_seq)  # also where it stands already: the group is in use
            else:
                group.seek({"seq": next_seq})
        except GroupHasMembers:
            raise Conflict(
                f"group {self._group!r} of topic {topic!r} has members of its own: name another group for this reader"
            ) from None
