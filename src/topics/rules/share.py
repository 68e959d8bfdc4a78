"""Dealing things out, to one after the other or one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def share(count: int, most: Sequence[int]) -> list[int]:
    """Deal `count` things one at a time, in arrival order, passing over who has enough: who gets the n-th one."""
    owners: list[int] = []
    left = list(most)
    hungry = [index for index, room in enumerate(left) if room > 0]
    while hungry and len(owners) < count:
        hungry = hungry[: count - len(owners)] if len(hungry) > count - len(owners) else hungry
        owners.extend(hungry)
        for index in hungry:
            left[index] -= 1
        hungry = [index for index in hungry if left[index]]
    return owners


def in_turn(things: Sequence[T], most: Sequence[int]) -> list[list[T]]:
    """The first gets all it may have before the next gets anything."""
    rest = iter(things)
    return [list(islice(rest, room)) for room in most]


def round_robin(things: list[T], most: Sequence[int]) -> list[list[T]]:
    if len(most) == 1:
        return [things]
    hands: list[list[T]] = [[] for _ in most]
    for thing, owner in zip(things, share(len(things), most), strict=True):
        hands[owner].append(thing)
    return hands
