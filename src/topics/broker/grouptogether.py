"""Fetches and acks of several members of a group, ordered at once: one submission for all of them.

Only what is decided the same way for all of them. Whoever is left out asks by itself, and is told there why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from topics.broker.group import ConsumerGroups, within
from topics.broker.router import is_behind
from topics.broker.together import shares_jobs
from topics.model.errors import TopicsError
from topics.rules.lease_values import READY, Ask
from topics.storage.groupfetch import Fetched, order_fetch
from topics.storage.grouping import GroupVerdict, Place, enter, gathered, order_settled
from topics.storage.leasing import Now
from topics.storage.store import Store
from topics.storage.submission import Together, WaitFirst

W = TypeVar("W")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchWish:
    member: str
    generation: int | None
    most: int
    bytes_max: int | None
    waits: bool
    """Where there is nothing, it waits for something."""


@dataclass(frozen=True, slots=True)
class AckWish:
    member: str
    generation: int | None
    seqs: Sequence[int]
    tokens: Sequence[int | None]


@dataclass(slots=True)
class Outcome(Generic[T]):
    place: Place
    now: Now
    found: list[T | None]
    """Per wish; None = it was left out."""


def fetch_together(
    store: Store, groups: ConsumerGroups, names: tuple[str, str], wishes: Sequence[FetchWish], waiter: Together
) -> Outcome[Fetched] | None:
    """Deal to each in this order; `waiter` is released when that is settled. None where each has to ask by itself."""

    def act(place: Place, now: Now, wish: FetchWish) -> Fetched | None:
        group = place.group
        enter(place, wish.member, wish.generation, now)  # first, because leases that are over end in it
        if wish.member not in group.members or (group.config.max_deliveries and group.leases.tally[READY]):
            return None  # some of them may have been handed out too often
        most, bytes_max = within(wish.most, wish.bytes_max)
        fetched = order_fetch(place, Ask(wish.member, most, group.config.visibility_ms), bytes_max, None, now, None)
        return fetched if fetched.rows or fetched.gap is not None or not wish.waits else None

    return _together(store, groups, names, act, wishes, waiter, fresh=True)


def ack_group_together(
    store: Store, groups: ConsumerGroups, names: tuple[str, str], wishes: Sequence[AckWish], waiter: Together
) -> Outcome[GroupVerdict] | None:
    """Order those in which every record is the member's own and nothing is under way for it."""

    def act(place: Place, now: Now, wish: AckWish) -> GroupVerdict | None:
        enter(place, wish.member, wish.generation, now)
        if not wish.seqs or not place.group.leases.holds_all(wish.member, wish.seqs, wish.tokens):
            return None
        return GroupVerdict(wish.seqs, submission=order_settled(place, wish.member, wish.seqs, now))

    return _together(store, groups, names, act, wishes, waiter)


def _together(
    store: Store,
    groups: ConsumerGroups,
    names: tuple[str, str],
    act: Callable[[Place, Now, W], T | None],
    wishes: Sequence[W],
    waiter: Together,
    fresh: bool = False,
) -> Outcome[T] | None:
    """`fresh`: what the sources of the topic have for it comes first."""
    with store.lock:
        try:
            place = groups.place(*names)
        except WaitFirst:
            return None
        config = place.group.config
        if config.mode != "queue" or config.filter is not None or not shares_jobs(place.topic.ordered.config):
            return None
        if fresh and is_behind(store, place.topic):
            return None
        now = groups.now()

        def tried(wish: W) -> T | None:
            try:
                return act(place, now, wish)
            except (WaitFirst, TopicsError):
                return None

        found, submission = gathered(place, lambda: [tried(wish) for wish in wishes])
        if submission is not None:
            submission.carry(waiter)
        return Outcome(place, now, found)
