"""A consumer group for callers that wait where they are: what embedded use hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from topics.broker.group import Asked, Batch, ConsumerGroups, Sought, Where
from topics.broker.groupinfo import GroupState, PendingRow
from topics.broker.jobs import read_records
from topics.broker.steps import Steps
from topics.model import limits
from topics.model.arguments import check_whole
from topics.model.errors import BatchTooLarge, InvalidRequest
from topics.model.group import GroupConfig
from topics.model.record import Gap, Record
from topics.storage.grouping import GroupVerdict
from topics.storage.store import Store

T = TypeVar("T")
Place = Literal["earliest", "latest"] | dict[str, int]
"""Where to begin: a word, `{"seq": n}` or `{"ts": ms}`."""


class Delivered(msgspec.Struct, frozen=True):
    """A record of a fetch. In stream mode `token` and `deadline` are 0."""

    record: Record
    count: int
    """How often it was handed out, this time included."""
    token: int
    deadline: int

    @property
    def seq(self) -> int:
        return self.record.seq


class Fetched(msgspec.Struct, frozen=True):
    records: list[Delivered]
    gap: Gap | None
    """Records in front of these that were lost."""
    cursor: int
    committed: int
    pending_full: bool


class Outcome(msgspec.Struct, frozen=True):
    """Of an ack, a nack, a reject or an extend."""

    done: int
    stale: list[int]
    why: dict[int, str]
    committed: int


class Run(Protocol):
    def __call__(self, steps: Steps[T]) -> T: ...


class GroupHandle:
    def __init__(self, store: Store, groups: ConsumerGroups, run: Run, topic: str, group: str) -> None:
        self._store = store
        self._groups = groups
        self._run = run
        self._topic = topic
        self._group = group

    def create(self, start: Place = "earliest", **config: Any) -> bool:
        """Make it, or replace its config; True = it is new."""
        try:
            wanted = msgspec.convert(config, _StrictConfig)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"bad group config: {error}") from None
        fields = {name: getattr(wanted, name) for name in GroupConfig.__struct_fields__}
        return self._run(self._groups.put(self._topic, self._group, GroupConfig(**fields), _where(start)))

    def info(self) -> GroupState:
        return self._run(self._groups.state(self._topic, self._group))

    def drop(self) -> None:
        self._run(self._groups.drop(self._topic, self._group))

    def join(self, member: str | None = None) -> tuple[str, int]:
        """The name and the new generation of the member."""
        return self._run(self._groups.join(self._topic, self._group, member))

    def leave(self, member: str, generation: int | None = None) -> int:
        return self._run(self._groups.leave(self._who(member, generation)))

    def heartbeat(self, member: str, generation: int | None = None) -> int:
        return self._run(self._groups.heartbeat(self._who(member, generation)))

    def fetch(
        self,
        member: str,
        max: int = 100,
        *,
        max_bytes: int | None = None,
        wait_ms: int = 0,
        claim_idle_ms: int | None = None,
        generation: int | None = None,
    ) -> Fetched:
        """The next records for a member."""
        check_whole(max=max, wait_ms=wait_ms, claim_idle_ms=0 if claim_idle_ms is None else claim_idle_ms)
        who = self._who(member, generation)
        return self._fetched(self._run(self._groups.fetch(who, max, max_bytes, wait_ms, claim_idle_ms)))

    def claim(
        self,
        member: str,
        min_idle_ms: int,
        max: int = 100,
        *,
        seqs: Sequence[int] | None = None,
        generation: int | None = None,
    ) -> Fetched:
        """Take over what other members left idle."""
        check_whole(min_idle_ms=min_idle_ms, max=max)
        return self._fetched(self._run(self._groups.claim(self._who(member, generation), min_idle_ms, max, seqs)))

    def commit(self, seq: int, member: str = "", generation: int | None = None) -> int:
        """Stream mode: `seq` is the next one to read. Returns what is committed then."""
        check_whole(seq=seq)
        return self._run(self._groups.commit(self._who(member, generation), seq))

    def ack(
        self,
        member: str,
        seqs: Sequence[int] = (),
        *,
        tokens: Sequence[int | None] | None = None,
        ranges: Sequence[tuple[int, int]] = (),
        generation: int | None = None,
    ) -> Outcome:
        who = self._who(member, generation)
        if len(ranges) > limits.SEQS_PER_CALL:
            raise BatchTooLarge(f"{len(ranges)} ranges are more than the {limits.SEQS_PER_CALL} of one call")
        verdict, committed = self._run(self._groups.ack(who, seqs, _tokens(seqs, tokens), ranges))
        return Outcome(len(verdict.done), verdict.stale, dict(verdict.why), committed)

    def nack(
        self,
        member: str,
        seqs: Sequence[int],
        *,
        tokens: Sequence[int | None] | None = None,
        delay_ms: int = 0,
        count: bool = True,
        generation: int | None = None,
    ) -> Outcome:
        who = self._who(member, generation)
        check_whole(delay_ms=delay_ms)
        verdict = self._run(self._groups.nack(who, seqs, _tokens(seqs, tokens), delay_ms, count))
        return self._outcome(verdict, len(verdict.done))

    def reject(
        self,
        member: str,
        seqs: Sequence[int],
        *,
        tokens: Sequence[int | None] | None = None,
        reason: str = "",
        generation: int | None = None,
    ) -> Outcome:
        """To the dead letters, or parked."""
        who = self._who(member, generation)
        return self._outcome(*self._run(self._groups.reject(who, seqs, _tokens(seqs, tokens), reason)))

    def extend(
        self,
        member: str,
        seqs: Sequence[int],
        visibility_ms: int,
        *,
        tokens: Sequence[int | None] | None = None,
        generation: int | None = None,
    ) -> Outcome:
        who = self._who(member, generation)
        check_whole(visibility_ms=visibility_ms)
        verdict, _ = self._run(self._groups.extend(who, seqs, _tokens(seqs, tokens), visibility_ms))
        return self._outcome(verdict, len(verdict.done))

    def seek(self, to: Place, *, force: bool = False, dry_run: bool = False) -> Sought:
        return self._run(self._groups.seek(self._topic, self._group, _where(to), force, dry_run))

    def pending(
        self,
        member: str | None = None,
        *,
        min_idle_ms: int = 0,
        parked: bool | None = None,
        limit: int = 1000,
        after_seq: int = 0,
    ) -> list[PendingRow]:
        """By seq; go on behind the last one's."""
        steps = self._groups.pending(self._topic, self._group, member, min_idle_ms, parked, limit, after_seq)
        return self._run(steps)[0]

    def _who(self, member: str, generation: int | None) -> Asked:
        return Asked(self._topic, self._group, member, generation)

    def _outcome(self, verdict: GroupVerdict, done: int) -> Outcome:
        return Outcome(done, verdict.stale, dict(verdict.why), self.info().committed)

    def _fetched(self, batch: Batch) -> Fetched:
        rows = {row[0]: row for row in batch.rows}
        deadline = 0 if batch.is_stream else batch.deadline
        records = [
            Delivered(record, rows[record.seq][3], rows[record.seq][1], deadline)
            for record in read_records(self._store, batch.topic, list(rows))
        ]
        return Fetched(records, batch.gap, batch.cursor, batch.committed, batch.pending_full)


class _StrictConfig(GroupConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


def _where(place: Place) -> Where:
    if place in ("earliest", "latest"):
        return Where(to="latest" if place == "latest" else "earliest")
    if isinstance(place, dict) and list(place) in (["seq"], ["ts"]) and all(_is_u64(n) for n in place.values()):
        return Where(seq=place.get("seq"), ts=place.get("ts"))
    raise InvalidRequest("a place is 'earliest', 'latest', {'seq': n} or {'ts': ms}")


def _is_u64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _tokens(seqs: Sequence[int], tokens: Sequence[int | None] | None) -> Sequence[int | None]:
    if len(seqs) > limits.SEQS_PER_CALL:
        raise BatchTooLarge(f"{len(seqs)} seqs are more than the {limits.SEQS_PER_CALL} of one call")
    if tokens is None:
        return [None] * len(seqs)
    if len(tokens) != len(seqs):
        raise InvalidRequest(f"{len(tokens)} tokens do not go with {len(seqs)} seqs")
    return tokens
