"""Dealing things out one at a time."""

from __future__ import annotations

from collections.abc import Sequence


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
