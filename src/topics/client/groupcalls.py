"""Calls of consumer groups, and what they answer.

An ack, a nack or a commit may be repeated when no answer came. A fetch, a claim or a join may not: what the lost answer
held stays with its member until it is released or runs out. Nor may a seek: the group has gone on since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from topics.client.answers import WireGap, WireItem, decode
from topics.client.calls import JSON, WAIT_MS_MAX, Call, encode, get, given, path, query, send
from topics.client.fields import CLAIM, FETCH, GROUP_CONFIG, NACK, PENDING, REJECT, SETTLE, check_names
from topics.client.transport import Answer, HttpRequest
from topics.model.group import GroupConfig
from topics.model.record import Gap, Record

Place = Literal["earliest", "latest"] | Mapping[str, int]
"""Where to begin: a word, `{"seq": n}` or `{"ts": ms}`."""


class GroupConfigured(msgspec.Struct, frozen=True):
    group: str
    created: bool
    config: GroupConfig


class GroupDropped(msgspec.Struct, frozen=True):
    group: str
    deleted: bool


class GroupLag(msgspec.Struct, frozen=True):
    records: int
    bytes: int
    seconds: float
    trend_per_s: float
    loss_eta_s: float | None


class GroupMember(msgspec.Struct, frozen=True):
    member: str
    generation: int
    in_flight: int
    idle_ms: int


class GroupInfo(msgspec.Struct, frozen=True):
    group: str
    mode: str
    cursor: int
    committed: int
    head_seq: int
    lag: GroupLag
    pending: int
    parked: int
    lost: int
    oldest_pending_ms: int | None
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    dead_lettered: int
    members: list[GroupMember]
    config: GroupConfig


class GroupPage(msgspec.Struct, frozen=True):
    groups: list[GroupInfo]
    next_cursor: str | None = None


class Joined(msgspec.Struct, frozen=True):
    member: str
    generation: int


class Generation(msgspec.Struct, frozen=True):
    generation: int


class Delivery(msgspec.Struct, frozen=True):
    count: int
    """How often the record was handed out, this time included."""
    token: int
    deadline: int


class Delivered(msgspec.Struct, frozen=True):
    """A record of a fetch; `delivery` is None in stream mode."""

    record: Record
    delivery: Delivery | None

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
    next_seq: int | None
    """Stream mode: what to commit once these are done with."""


class Acked(msgspec.Struct, frozen=True):
    acked: int
    stale: list[int]
    why: dict[int, str]
    committed: int


class Nacked(msgspec.Struct, frozen=True):
    nacked: int
    stale: list[int]
    why: dict[int, str]


class Rejected(msgspec.Struct, frozen=True):
    rejected: int
    stale: list[int]
    why: dict[int, str]


class Extended(msgspec.Struct, frozen=True):
    extended: int
    stale: list[int]
    why: dict[int, str]
    deadlines: dict[int, int]


class Committed(msgspec.Struct, frozen=True):
    committed: int


class Sought(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    origin: int
    to: int
    skipped: int
    replayed: int
    pending_cleared: int


class Pending(msgspec.Struct, frozen=True, rename={"seq": "$seq"}):
    seq: int
    member: str
    count: int
    first_ts: int
    last_ts: int
    deadline: int | None


class PendingPage(msgspec.Struct, frozen=True):
    pending: list[Pending]
    next_cursor: str | None = None


class _Item(WireItem, kw_only=True):
    delivery: Delivery | None = None


class _Fetch(msgspec.Struct):
    records: list[_Item]
    tombstone: WireGap | None
    cursor: int
    committed: int
    pending_full: bool
    next_seq: int | None = None


def _fetched(answer: Answer) -> Fetched:
    found = decode(answer, _Fetch)
    return Fetched(
        [Delivered(item.record(), item.delivery) for item in found.records],
        None if found.tombstone is None else found.tombstone.gap(),
        found.cursor,
        found.committed,
        found.pending_full,
        found.next_seq,
    )


def page(topic: str, prefix: str | None, page_size: int | None, cursor: str | None) -> Call[GroupPage]:
    return get(path("topics", topic, "groups") + query(prefix=prefix, page_size=page_size, cursor=cursor), GroupPage)


class GroupCalls:
    """The calls of one group."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group

    def _at(self, *more: str) -> str:
        return path("topics", self.topic, "groups", self.group, *more)

    def create(self, config: Mapping[str, Any]) -> Call[GroupConfigured]:
        check_names(config, GROUP_CONFIG, "a group")
        return send("PUT", self._at(), dict(config), GroupConfigured)

    def info(self) -> Call[GroupInfo]:
        return get(self._at(), GroupInfo)

    def drop(self) -> Call[GroupDropped]:
        return Call(HttpRequest("DELETE", self._at(), {"accept": JSON}), lambda answer: decode(answer, GroupDropped))

    def join(self, member: str | None) -> Call[Joined]:
        return send("POST", self._at("join"), given(member=member), Joined, safe=False)

    def leave(self, member: str, generation: int | None) -> Call[Generation]:
        return send("POST", self._at("leave"), given(member=member, generation=generation), Generation)

    def heartbeat(self, member: str, generation: int | None) -> Call[Generation]:
        return send("POST", self._at("heartbeat"), given(member=member, generation=generation), Generation)

    def fetch(self, member: str, wait_ms: int, fields: Mapping[str, Any]) -> Call[Fetched]:
        check_names(fields, FETCH, "a fetch")
        body = given(member=member, wait_ms=wait_ms, **fields)
        return self._records("fetch", body, min(wait_ms, WAIT_MS_MAX) / 1000)

    def claim(self, member: str, min_idle_ms: int, fields: Mapping[str, Any]) -> Call[Fetched]:
        check_names(fields, CLAIM, "a claim")
        return self._records("claim", given(member=member, min_idle_ms=min_idle_ms, **fields), 0.0)

    def _records(self, verb: str, body: Mapping[str, Any], extra_s: float) -> Call[Fetched]:
        headers = {"content-type": JSON, "accept": JSON}
        request = HttpRequest("POST", self._at(verb), headers, encode(body), waits=extra_s > 0)
        return Call(request, _fetched, False, extra_s)

    def commit(self, seq: int, member: str | None, generation: int | None) -> Call[Committed]:
        return send("POST", self._at("commit"), given(seq=seq, member=member, generation=generation), Committed)

    def ack(
        self, member: str, seqs: Sequence[int], ranges: Sequence[tuple[int, int]], fields: Mapping[str, Any]
    ) -> Call[Acked]:
        check_names(fields, SETTLE, "an ack")
        body = given(member=member, seqs=list(seqs), ranges=list(ranges) or None, **fields)
        return send("POST", self._at("ack"), body, Acked)

    def nack(self, member: str, seqs: Sequence[int], fields: Mapping[str, Any]) -> Call[Nacked]:
        check_names(fields, NACK, "a nack")
        return send("POST", self._at("nack"), given(member=member, seqs=list(seqs), **fields), Nacked)

    def reject(self, member: str, seqs: Sequence[int], fields: Mapping[str, Any]) -> Call[Rejected]:
        check_names(fields, REJECT, "a reject")
        return send("POST", self._at("reject"), given(member=member, seqs=list(seqs), **fields), Rejected)

    def extend(self, member: str, seqs: Sequence[int], visibility_ms: int, fields: Mapping[str, Any]) -> Call[Extended]:
        check_names(fields, SETTLE, "an extend")
        body = given(member=member, seqs=list(seqs), visibility_ms=visibility_ms, **fields)
        return send("POST", self._at("extend"), body, Extended)

    def seek(self, to: Place, force: bool, dry_run: bool) -> Call[Sought]:
        return send("POST", self._at("seek"), {"to": to, "force": force, "dry_run": dry_run}, Sought, safe=dry_run)

    def pending(self, wanted: Mapping[str, Any]) -> Call[PendingPage]:
        check_names(wanted, PENDING, "what is pending")
        return get(self._at("pending") + query(**wanted), PendingPage)
