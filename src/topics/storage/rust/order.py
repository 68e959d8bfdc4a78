"""The order in which the frames of several groups are replayed.

A topic's frames lie in one group, in order, unless the number of shards changed: then a part of them lies in another
group, and nothing says which group came first. Seqs do, and where a frame has none, the time does:

  - an Append stands at its seq;
  - a Delete stands behind the head that it was bound to, and behind the seqs that it names;
  - any other frame stands behind the Appends of its own group that come before it, and behind those of other groups
    that are older than it, up to the next Append of its own group.

Within a group nothing changes places. Frames without a topic (routers) are ordered by time alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from topics.format.control import BadBody, Delete
from topics.format.frame import Kind, decode_frame
from topics.storage.rust.groups import RustGroup
from topics.storage.walread import FileRead

Item = tuple[int, ...]
"""As `WalScan` has them: a run of Appends of one topic, or one control frame."""
Placed = tuple[FileRead, Item]


def in_order(groups: list[RustGroup]) -> Iterator[Placed]:
    """All that is to be replayed; the frames of one topic in the order they were logged in."""
    parts = [list(_items(group)) for group in groups]
    split = _split_topics(parts)
    for part in parts:
        for read, item in part:
            if item[1] not in split:
                yield read, item
    for topic_id in sorted(split):
        yield from _merge([[placed for placed in part if placed[1][1] == topic_id] for part in parts])


def _items(group: RustGroup) -> Iterator[Placed]:
    """What ends behind the position."""
    for read in group.reads:
        for scan in read.scans:
            for item in scan.items:
                if (item[6] if item[0] == Kind.APPEND else item[-1]) > read.start:
                    yield read, item


def _split_topics(parts: list[list[Placed]]) -> set[int]:
    seen: set[int] = set()
    split: set[int] = set()
    for part in parts:
        here = {item[1] for _, item in part}
        split |= here & seen
        seen |= here
    return split


def _merge(parts: list[list[Placed]]) -> list[Placed]:
    keyed: list[tuple[tuple[int, int, int, int, int], Placed]] = []
    for number, part in enumerate(parts):
        others = _Appends(item for other in parts if other is not part for _, item in other)
        times = accumulate((item[8] if item[0] == Kind.APPEND else item[3] for _, item in part), max)
        following = _following(part)
        place = behind = 0
        for index, ((read, item), ts) in enumerate(zip(part, times, strict=True)):
            before = place
            if item[0] == Kind.APPEND:
                place = max(place, item[2])
                behind = behind if place == before else 0
            else:
                place = max(place, _bound(read, item), others.through(place, following[index], ts))
                behind = 1  # the Append of the very seq that it stands at
            keyed.append(((place, behind, ts, number, index), (read, item)))
            if item[0] == Kind.APPEND and item[2] + item[3] - 1 > place:
                place, behind = item[2] + item[3] - 1, 0
    keyed.sort(key=lambda pair: pair[0])
    return [placed for _, placed in keyed]


class _Appends:
    """Those of other groups: the last seqs of their runs, and the latest time up to each."""

    def __init__(self, items: Iterable[Item]) -> None:
        runs = sorted((item[2] + item[3] - 1, item[8]) for item in items if item[0] == Kind.APPEND)
        self._seqs = [seq for seq, _ in runs]
        self._times = list(accumulate((ts for _, ts in runs), max))

    def through(self, low: int, high: int, ts: int) -> int:
        """The highest seq between two that is older than `ts`, as are all in front of it; 0 if there is none."""
        at = min(bisect_left(self._times, ts), bisect_left(self._seqs, high)) - 1
        return self._seqs[at] if at >= 0 and self._seqs[at] > low else 0


def _following(part: list[Placed]) -> list[int]:
    """For each frame, the seq of the next Append behind it."""
    found: list[int] = []
    following = 1 << 64
    for _, item in reversed(part):
        found.append(following)
        if item[0] == Kind.APPEND:
            following = item[2]
    return found[::-1]


def _bound(read: FileRead, item: Item) -> int:
    if item[0] != Kind.DELETE:
        return 0
    try:
        found = Delete.decode(decode_frame(read.view, item[-2], item[-1]).body)
    except BadBody:
        return 0
    return max([found.bound - 1 if found.bound else 0, *found.seqs])
