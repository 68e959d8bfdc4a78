"""Consumer groups: many per topic, each with its own progress. Thin over the rules of groups and leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from topics.broker.groupinfo import GroupState, PendingRow, look_at, pending_rows, state_of_group
from topics.broker.groupletters import SPENT, bury_records
from topics.broker.listing import page_of
from topics.broker.steps import Nap, Steps, asked, settled
from topics.format.control import Selector, SelectorOp
from topics.model import limits
from topics.model.config import check_topic_name
from topics.model.errors import GroupHasMembers, InvalidRequest
from topics.model.group import GroupConfig, check_group_config, check_member
from topics.model.leaserows import LeaseRow
from topics.model.record import Gap
from topics.rules.lag import Trend
from topics.rules.lease_values import Ask
from topics.storage.groupfetch import (
    Fetched,
    Matches,
    coming_end,
    find_matches,
    order_fetch,
    order_idle_claim,
    stream_fetch,
)
from topics.storage.grouping import (
    GroupVerdict,
    Place,
    enter,
    find_group,
    judge,
    order_ack,
    order_commit,
    order_drop,
    order_extend,
    order_join,
    order_leave,
    order_nack,
    order_parked,
    order_put,
    order_seek,
    sweep_group,
)
from topics.storage.leasing import Now
from topics.storage.store import Store
from topics.storage.submission import Submission
from topics.storage.timesearch import first_at
from topics.storage.topic import Topic

T = TypeVar("T")

FETCH_MAX: Final = 1000
PENDING_PAGE: Final = 1000

LOOK_MS: Final = 250
"""How often a waiting fetch looks for records whose lease or delay is over: nothing else tells it."""


class Where(msgspec.Struct, frozen=True):
    """A place in a topic: exactly one of these."""

    to: Literal["earliest", "latest"] | None = None
    seq: int | None = None
    ts: int | None = None


@dataclass(slots=True)
class Batch:
    """What one fetch or claim got."""

    topic: Topic
    rows: Sequence[LeaseRow] = ()
    deadline: int = 0
    """Wall time."""
    gap: Gap | None = None
    cursor: int = 0
    committed: int = 0
    pending_full: bool = False
    is_stream: bool = False


class Sought(msgspec.Struct, rename={"origin": "from"}):
    origin: int
    to: int
    skipped: int
    replayed: int
    pending_cleared: int


@dataclass(slots=True)
class Asked:
    """Who asks, in which group."""

    topic: str
    group: str
    member: str = ""
    generation: int | None = None


def within(most: int, bytes_max: int | None) -> tuple[int, int]:
    """What a fetch may ask for, of records and of bytes."""
    size = limits.FETCH_BYTES
    return min(max(most, 1), FETCH_MAX), size if bytes_max is None else min(max(bytes_max, 1), size)


class ConsumerGroups:
    def __init__(self, store: Store, swept: Callable[[str], Steps[Topic]]) -> None:
        self._store = store
        self._swept = swept
        self._trends: dict[tuple[int, str], Trend] = {}

    def now(self) -> Now:
        clock = self._store.clock
        return Now(clock.now_ms(), clock.monotonic_ns() // 1_000_000)

    def place(self, topic: str, group: str) -> Place:
        """Under the lock."""
        found = self._store.topic(topic)
        return find_group(found, self._store.shard_for(found), group)

    def _entered(self, who: Asked, mode: str | None, act: Callable[[Place, Now], T]) -> Steps[tuple[Place, T, Now]]:
        """A call of a member, decided under the lock."""
        if who.member:
            check_member(who.member)

        def ask() -> tuple[Place, T, Now]:
            place, now = self.place(who.topic, who.group), self.now()
            if mode is not None and place.group.config.mode != mode:
                raise InvalidRequest(
                    f"group {who.group!r} is in {place.group.config.mode} mode; this call is for {mode}"
                )
            enter(place, who.member, who.generation, now)
            return place, act(place, now), now

        return (yield from asked(self._store, ask))

    # -- groups --------------------------------------------------------------------------------------------------------

    def put(self, topic: str, name: str, config: GroupConfig, start: Where) -> Steps[bool]:
        """Make a group, or replace the config of one; True = it is new."""
        check_topic_name(name, "group name")
        check_group_config(topic, config)
        yield from self._swept(topic)

        def ask() -> tuple[bool, Submission | None]:
            found = self._store.topic(topic)
            shard = self._store.shard_for(found)
            return order_put(found, shard, name, config.resolved(), lambda: position_of(found, start), self.now())

        created, submission = yield from asked(self._store, ask)
        yield from settled(submission)
        return created

    def drop(self, topic: str, name: str) -> Steps[None]:
        def ask() -> Submission:
            place = self.place(topic, name)
            self._trends.pop((place.topic.id, name), None)
            return order_drop(place, self.now())

        yield from settled((yield from asked(self._store, ask)))

    def state(self, topic: str, name: str) -> Steps[GroupState]:
        yield from self._swept(topic)

        def ask() -> GroupState:
            return self._state(self.place(topic, name))

        return (yield from asked(self._store, ask))

    def _state(self, place: Place) -> GroupState:
        now = self.now()
        sweep_group(place, now)
        return state_of_group(place.topic, place.group, self._trend(place), now)

    def _trend(self, place: Place) -> Trend:
        return self._trends.setdefault((place.topic.id, place.group.name), Trend())

    def listed(
        self, topic: str, prefix: str, after: str | None, size: int
    ) -> Steps[tuple[list[GroupState], str | None]]:
        yield from self._swept(topic)

        def ask() -> tuple[list[GroupState], str | None]:
            groups = self._store.topic(topic).groups
            known = {} if groups is None else groups.by_name
            names, following = page_of(known, prefix, after, size, lambda _: True)
            return [self._state(self.place(topic, name)) for name in names], following

        return (yield from asked(self._store, ask))

    def pending(
        self, topic: str, name: str, member: str | None, min_idle_ms: int, parked: bool | None, limit: int, after: int
    ) -> Steps[tuple[list[PendingRow], int | None]]:
        """A page of what is pending, and the last seq of it if another page follows."""
        limit = min(max(limit, 1), PENDING_PAGE)

        def ask() -> tuple[list[PendingRow], int | None]:
            place, now = self.place(topic, name), self.now()
            sweep_group(place, now)
            shift = place.groups.shift_ms
            rows = pending_rows(place.group, now, shift, member, min_idle_ms, parked, limit + 1, after)
            return rows[:limit], rows[limit - 1].seq if len(rows) > limit else None

        return (yield from asked(self._store, ask))

    def seek(self, topic: str, name: str, where: Where, force: bool, dry_run: bool) -> Steps[Sought]:
        yield from self._swept(topic)

        def ask() -> tuple[Sought, Submission | None]:
            place, now = self.place(topic, name), self.now()
            sweep_group(place, now)
            group, found = place.group, place.topic
            position, cursor = position_of(found, where), group.cursor
            skipped, _ = found.measure(cursor, position - 1)
            replayed, _ = found.measure(position, cursor - 1)
            sought = Sought(cursor, position, skipped, replayed, len(group.leases.entries))
            if dry_run:
                return sought, None
            alive = [member for member in group.members if member not in group.leaving]
            if alive and not force:
                raise GroupHasMembers(
                    f"group {name!r} has {len(alive)} members; let them leave, or say force",
                    group=name,
                    members=len(alive),
                )
            group.used_ms = now.ms
            return sought, order_seek(place, position, now)

        sought, submission = yield from asked(self._store, ask)
        yield from settled(submission)
        return sought

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, topic: str, name: str, member: str | None) -> Steps[tuple[str, int]]:
        """The name and the new generation of a member; a name is made where none is given."""
        if member is None:
            member = f"member-{self._store.ids.token(8)}"
        check_member(member)
        joining = member

        def ask() -> tuple[int, Submission | None]:
            place, now = self.place(topic, name), self.now()
            place.group.used_ms = now.ms
            return order_join(place, joining, now)

        generation, submission = yield from asked(self._store, ask)
        yield from settled(submission)
        return member, generation

    def leave(self, who: Asked) -> Steps[int]:
        check_member(who.member)
        _, (generation, submission), _ = yield from self._entered(
            who, None, lambda place, now: order_leave(place, who.member, now)
        )
        yield from settled(submission)
        return generation

    def heartbeat(self, who: Asked) -> Steps[int]:
        check_member(who.member)

        def act(place: Place, _: Now) -> int:
            known = place.group.members.get(who.member)
            if known is None:
                place.group.check_generation(who.member, -1)
            assert known is not None
            return known.generation

        _, generation, _ = yield from self._entered(who, None, act)
        return generation

    # -- fetching ------------------------------------------------------------------------------------------------------

    def fetch(
        self, who: Asked, most: int, bytes_max: int | None, wait_ms: int, claim_idle_ms: int | None
    ) -> Steps[Batch]:
        check_member(who.member)
        most, budget = within(most, bytes_max)
        store = self._store
        ends = store.clock.monotonic_ns() + wait_ms * 1_000_000
        while True:
            topic = yield from self._swept(who.topic)
            left_ms = max((ends - store.clock.monotonic_ns()) // 1_000_000, 0)
            nap = Nap(min(left_ms, LOOK_MS)) if left_ms else None
            if nap is not None:
                with store.lock:
                    nap.watch(topic)  # before the look, so that no append is missed
            try:
                batch, moved = yield from self._fetch(who, most, budget, claim_idle_ms)
                if batch.rows or batch.gap is not None:
                    return batch
                if moved:
                    continue  # a filter let nothing through so far
                if nap is None:
                    return batch
                with store.lock:
                    ending = coming_end(batch.topic, batch.cursor)
                yield nap if ending is None else ending
            finally:
                if nap is not None:
                    with store.lock:
                        nap.leave()
            if nap.refused:
                return batch

    def _fetch(self, who: Asked, most: int, budget: int, claim_idle_ms: int | None) -> Steps[tuple[Batch, bool]]:
        matches: Matches | None = None

        def act(place: Place, now: Now) -> Fetched | None:
            found = place.group
            if who.member not in found.members or (matches is None) != (found.config.filter is None):
                return None
            if matches is not None and max(found.cursor, place.topic.dead.floor + 1) < matches.first:
                return None  # somebody went back meanwhile
            if found.is_stream:
                return stream_fetch(place, most, budget, matches)
            ask = Ask(who.member, most, found.config.visibility_ms)
            return order_fetch(place, ask, budget, claim_idle_ms, now, matches)

        place, fetched, now = yield from self._entered(who, None, act)
        if fetched is None:
            if who.member not in place.group.members:
                yield from self.join(who.topic, who.group, who.member)
            matches = self._matches(place)
            place, fetched, now = yield from self._entered(who, None, act)
        if fetched is None:
            return Batch(place.topic), True
        return (yield from self._batch(place, fetched, now)), fetched.moved

    def _matches(self, place: Place) -> Matches | None:
        wanted = place.group.config.filter
        if wanted is None:
            return None
        glob = wanted.tag.endswith("*")
        selector = Selector(SelectorOp.GLOB, wanted.tag[:-1]) if glob else Selector(SelectorOp.EQ, wanted.tag)
        return find_matches(self._store, place.topic, selector, place.group.cursor)

    def claim(self, who: Asked, min_idle_ms: int, most: int, seqs: Sequence[int] | None) -> Steps[Batch]:
        """Take over what nobody was given or extended for `min_idle_ms`."""
        check_member(who.member)
        most = min(max(most, 1), FETCH_MAX)

        def act(place: Place, now: Now) -> Fetched:
            for seq in seqs or ():
                if seq > place.topic.head:
                    raise InvalidRequest(f"seq {seq} is above {place.topic.head}, the last one of the topic")
            ask = Ask(who.member, most, place.group.config.visibility_ms)
            return order_idle_claim(place, ask, min_idle_ms, seqs, now)

        place, fetched, now = yield from self._entered(who, "queue", act)
        return (yield from self._batch(place, fetched, now))

    def _batch(self, place: Place, fetched: Fetched, now: Now) -> Steps[Batch]:
        try:
            yield from settled(fetched.submission)
        except BaseException:
            with self._store.lock:
                place.group.leases.give_back(fetched.spent, now.ms)
            raise
        if fetched.spent:
            yield from bury_records(self._store, place, fetched.spent, SPENT, self.now)
        with self._store.lock:
            return self.batches_of(place, [fetched], now)[0]

    def batches_of(self, place: Place, found: Sequence[Fetched], now: Now) -> list[Batch]:
        """What each of them got. Under the lock, once it is settled."""
        topic, group = place.topic, place.group
        look = look_at(topic, group, now)
        self._trend(place).add(look)
        deadline, cursor = now.wall_ms + group.config.visibility_ms, group.cursor
        return [
            Batch(topic, one.rows, deadline, one.gap, cursor, look.committed, one.pending_full, group.is_stream)
            for one in found
        ]

    # -- what a holder does --------------------------------------------------------------------------------------------

    def commit(self, who: Asked, seq: int) -> Steps[int]:
        place, submission, _ = yield from self._entered(who, "stream", lambda place, now: order_commit(place, seq, now))
        yield from settled(submission)
        return place.group.committed

    def ack(
        self, who: Asked, seqs: Sequence[int], tokens: Sequence[int | None], ranges: Sequence[tuple[int, int]]
    ) -> Steps[tuple[GroupVerdict, int]]:
        place, verdict = yield from self._settle(
            who, lambda place, now: order_ack(place, who.member, seqs, tokens, ranges, now)
        )
        with self._store.lock:
            return verdict, place.group.committed

    def nack(
        self, who: Asked, seqs: Sequence[int], tokens: Sequence[int | None], delay_ms: int, count: bool
    ) -> Steps[GroupVerdict]:
        delay_ms = min(delay_ms, limits.DELAY_MS)
        _, verdict = yield from self._settle(
            who, lambda place, now: order_nack(place, who.member, seqs, tokens, delay_ms, count, now)
        )
        return verdict

    def extend(
        self, who: Asked, seqs: Sequence[int], tokens: Sequence[int | None], visibility_ms: int
    ) -> Steps[tuple[GroupVerdict, int]]:
        """What was extended, and until when, by wall time."""
        visibility_ms = min(max(visibility_ms, 100), limits.LEASE_MS)
        wall_ms = self.now().wall_ms
        _, verdict = yield from self._settle(
            who, lambda place, now: order_extend(place, who.member, seqs, tokens, visibility_ms, now)
        )
        return verdict, wall_ms + visibility_ms

    def reject(
        self, who: Asked, seqs: Sequence[int], tokens: Sequence[int | None], reason: str
    ) -> Steps[tuple[GroupVerdict, int]]:
        """To the dead letters, or, where there are none, parked. How many that became of."""

        def order(place: Place, now: Now) -> GroupVerdict:
            verdict = judge(place, who.member, seqs, tokens, now)
            if not verdict.done:
                return verdict
            if place.group.config.dead_letter is None:
                verdict.submission = order_parked(place, verdict.done, now)
            else:
                place.group.leases.hold(verdict.done, None)
            return verdict

        place, verdict = yield from self._settle(who, order)
        if place.group.config.dead_letter is None or not verdict.done:
            return verdict, len(verdict.done)
        return verdict, (yield from bury_records(self._store, place, verdict.done, reason, self.now))

    def _settle(self, who: Asked, order: Callable[[Place, Now], GroupVerdict]) -> Steps[tuple[Place, GroupVerdict]]:
        check_member(who.member)
        place, verdict, _ = yield from self._entered(who, "queue", order)
        yield from settled(verdict.submission)
        return place, verdict


def position_of(topic: Topic, where: Where) -> int:
    """The seq that a group begins with. Under the store's lock."""
    if where.seq is not None:
        if where.seq > topic.head + 1:
            raise InvalidRequest(f"seq {where.seq} is beyond {topic.head + 1}, the next one of topic {topic.name!r}")
        return max(where.seq, 1)
    if where.ts is not None:
        return max(first_at(topic, where.ts), topic.dead.floor + 1)
    return topic.head + 1 if where.to == "latest" else topic.earliest_seq
