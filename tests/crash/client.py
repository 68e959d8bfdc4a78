"""The users of a simulated store: each call goes to the engine and to the oracle, and the answers must agree."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any, Protocol

from tests.crash.forward import Routes
from tests.crash.groups import GroupLedger, GroupUsers
from tests.crash.guards import wrongly_taken
from tests.crash.jobs import JobLedger, QueueUsers
from tests.crash.profile import Profile
from tests.crash.records import sent
from tests.crash.staging import Stages
from topics.format.control import EvictWatermark, Selector, SelectorOp
from topics.format.frame import Kind, decode_frame
from topics.format.ops import prepare
from topics.model.config import Durability, TopicConfig, make_config
from topics.model.errors import RecordTooLarge, TopicFull, TopicNotFound
from topics.model.record import Record
from topics.storage.append import shares_submission
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.testing.oracle import Instance, Oracle, Step, Violation
from topics.testing.plain import Appended, Configured, Deleted, Dropped, Evicted, State, oldest_over_cap, size_of

TAGS = (None, "a", "ab", "b:1", "b:2")
SELECTORS = (
    Selector(SelectorOp.EQ, "a"),
    Selector(SelectorOp.EQ, "b:1"),
    Selector(SelectorOp.GLOB, "a"),
    Selector(SelectorOp.GLOB, "b:"),
    Selector(SelectorOp.GLOB, ""),
)


class Token(Protocol):
    """What a writer may wait for."""

    @property
    def settled(self) -> bool: ...


Operation = Callable[[], Token | None]


class Client:
    def __init__(
        self,
        store: Store,
        oracle: Oracle,
        profile: Profile,
        rng: Random,
        counts: Counter[str],
        jobs: JobLedger,
        groups: GroupLedger,
    ) -> None:
        self.store = store
        self.oracle = oracle
        self.profile = profile
        self.rng = rng
        self.counts = counts
        self.serial = 0
        self.routes = Routes(self)
        self.workers = QueueUsers(self, jobs)
        self.groups = GroupUsers(self, groups)
        self.stages: Stages | None = None

    # -- what to do next -----------------------------------------------------------------------------------------------

    def draw(self) -> Operation:
        rng, profile = self.rng, self.profile
        if profile.routers and rng.random() < 0.12:
            return self.routes.draw()
        if self.stages is not None and rng.random() < 0.5:
            return self.stages.draw()
        name = f"t{rng.randrange(profile.topics)}"
        if name not in self.oracle.names:
            config = self.draw_config(name)
            return lambda: self.create(name, config)
        if self._is_queue(name) and rng.random() < 0.5:
            return self.workers.draw(name)
        if profile.groups and not self._is_queue(name) and rng.random() < 0.5:
            return self.groups.draw(name)
        roll = rng.random()
        if roll < 0.7:
            return self._draw_append(name)
        if roll < 0.82:
            if not profile.deletes:
                return self._draw_append(name)
            before = rng.choice((None, rng.randint(0, 60), rng.randint(0, 10)))
            match = None if before is not None and rng.random() < 0.6 else rng.choice(SELECTORS)
            if before is None and match is None:
                before = 3
            return lambda: self.delete(name, before, match)
        if roll < 0.92:
            if not profile.config_changes:
                return lambda: self.sweep(name)
            config = self.draw_config(name)
            return lambda: self.configure(name, config)
        if roll < 0.96 and profile.drops:
            return lambda: self.drop(name)
        return lambda: self.sweep(name)

    def _is_queue(self, name: str) -> bool:
        return self.profile.queues and int(name[1:]) % 2 == 0

    def draw_config(self, name: str) -> TopicConfig:
        rng = self.rng
        fields: dict[str, Any] = {
            "durability": rng.choice(self.profile.durabilities),
            "idempotency_window_ms": 1 << 40,
        }
        if self._is_queue(name):
            fields |= {"type": "queue", "leases_durable": rng.random() < 0.6}
        if self.profile.caps and rng.random() < 0.6:
            kind = rng.choice(("cap_records", "cap_bytes", "ttl_ms"))
            fields[kind] = {"cap_records": rng.randint(1, 30), "cap_bytes": rng.randint(100, 3000), "ttl_ms": 300}[kind]
            if rng.random() < 0.2:
                fields["discard"] = "reject"
        return make_config(fields)

    def _draw_append(self, name: str) -> Operation:
        rng, profile = self.rng, self.profile
        key: str | None = None
        if profile.keys and rng.random() < 0.3:
            key = f"key-{rng.randrange(12)}"
        batch = [self.draw_record() for _ in range(rng.randint(1, profile.batch_max))]
        return lambda: self.append(name, batch, key)

    def draw_record(self) -> dict[str, Any]:
        rng = self.rng
        self.serial += 1
        size = self.profile.payload_max if self.profile.equal_sizes else rng.randint(1, self.profile.payload_max)
        text = f"{self.serial:08d}" + "x" * size
        record: dict[str, Any] = {"data": b'{"n":"%b"}' % text.encode()}
        if self.profile.equal_sizes:
            record["tag"] = rng.choice(("b:1", "b:2"))
            return record
        tag = rng.choice(TAGS)
        if tag is not None:
            record["tag"] = tag
        if rng.random() < 0.2:
            record["node"] = f"n{rng.randrange(3)}"
        if rng.random() < 0.2:
            record["key"] = f"k{rng.randrange(9)}"
        if rng.random() < 0.2:
            record["meta"] = {"m": self.serial}
        return record

    # -- calls ---------------------------------------------------------------------------------------------------------

    def instance(self, name: str) -> Instance | None:
        """The instance that the engine must know by this name now, or None if it must know none."""
        self.oracle.settle()
        instance = self.oracle.names.get(name)
        if instance is None or instance.published is None or instance.ordered is None:
            return None
        return instance

    def create(self, name: str, config: TopicConfig) -> Submission | None:
        self.oracle.settle()
        token = self.store.create(name, config)
        if token is None:
            if self.instance(name) is None:
                raise Violation(f"create of {name!r} says it exists, and it must not")
            return None
        if self.instance(name) is not None:
            raise Violation(f"create of {name!r} made a second topic of that name")
        self.counts["create"] += 1
        if any(known.name == name and known.dropped for known in self.oracle.instances.values()):
            self.counts["re-create"] += 1
            old = [known for known in self.oracle.instances.values() if known.name == name and known.dropped]
            if token.shard is not None and any(known.shard != token.shard.index for known in old):
                self.counts["re-create on another shard"] += 1
        instance = self.oracle.create(name, config, token)
        instance.shard = token.shard.index if token.shard is not None else 0
        return token

    def drop(self, name: str) -> Submission | None:
        instance = self.instance(name)
        token = self.store.drop(name)
        if (token is None) != (instance is None):
            raise Violation(f"drop of {name!r} answers {token}, and the topic is {instance}")
        if token is not None and instance is not None:
            self.counts["drop"] += 1
            instance.add(Step(Dropped(), token))
        return token

    def configure(self, name: str, config: TopicConfig) -> Submission | None:
        instance = self.instance(name)
        try:
            token = self.store.configure(name, config)
        except TopicNotFound:
            return self.absent(instance, "configure")
        state = self.present(instance, "configure")
        if token is None:
            if state.config != config:
                raise Violation(f"configure of {name!r} changed nothing, and it must")
            return None
        old, new = state.durability, config.commit_class
        leaving = old in (Durability.EPHEMERAL, Durability.MEMORY) and new != old
        left: tuple[int, ...] = ()
        holes: tuple[int, ...] = ()
        if old == Durability.EPHEMERAL != new:
            left = tuple(seq for seq in state.records if seq in state.ram)
            holes = tuple(seq for seq, why in state.lost.items() if seq in state.ram and why == "source_trim")
            self.counts["group settled in RAM"] += self.groups.ledger.left_ram(self.store.topic(name), token)
        if old != new:
            self.counts["class change"] += 1
        assert instance is not None
        instance.add(Step(Configured(config, state.head if leaving else 0, left, holes), token))
        return token

    def append(self, name: str, batch: list[dict[str, Any]], key: str | None) -> Submission | None:
        self.sweep(name)
        instance = self.instance(name)
        now = self.store.clock.now_ms()
        prepared = prepare(batch)
        if self._is_queue(name):
            prepared.delays = self.workers.delays(len(batch))
        requests = self._requests(name, batch, key)
        if len(requests) > 1:
            prepared.ends = struct.pack(f"<{len(requests)}I", *accumulate(map(len, requests)))
        try:
            done = self.store.append(name, prepared, key)
        except TopicNotFound:
            return self.absent(instance, "append")
        except WaitFirst as first:
            head = instance.ordered.head if instance is not None and instance.ordered is not None else 0
            new = [sent(record, seq, 0) for seq, record in enumerate(batch, head + 1)]
            self.note_eviction(instance, new, first.submission)
            raise
        except (TopicFull, RecordTooLarge):
            if not self.rejects(self.present(instance, "append"), batch):
                raise Violation(f"append to {name!r} was refused, and there is room") from None
            self.counts["reject"] += 1
            return None
        state = self.present(instance, "append")
        assert instance is not None
        assert instance.published is not None
        known = instance.published.keys.get(key) if key is not None else None
        if known is not None and now - known[2] > state.config.idempotency_window_ms:
            known = None
        if done.deduped or known is not None:
            if not done.deduped or known != (done.first_seq, done.count, done.ts):
                raise Violation(f"append to {name!r} with the key {key!r} gave {done}, the first gave {known}")
            self.counts["idempotent retry"] += 1
            if instance.base is not None and key in instance.base.keys:
                self.counts["idempotent retry over a crash"] += 1
            return None
        if self.rejects(state, batch):
            raise Violation(f"append to {name!r} was taken, and its topic is full")
        if done.first_seq != state.head + 1 or done.count != len(batch):
            raise Violation(f"append to {name!r} got the seqs {done.first_seq}+{done.count} behind {state.head}")
        if done.first_seq <= instance.handed:
            raise Violation(f"append to {name!r} got seq {done.first_seq} again; {instance.handed} was acknowledged")
        if done.ts < max(state.last_ts, now):
            raise Violation(f"append to {name!r} at {now} got the time {done.ts} behind {state.last_ts}")
        seq = done.first_seq
        for request in requests:
            records = [sent(record, seq + i, done.ts) for i, record in enumerate(request)]
            self.note_append(instance, Appended(records, key), done.submission)
            seq += len(request)
        self.counts["append"] += 1
        if len(requests) > 1:
            self.counts["append together"] += 1
        return done.submission

    def _requests(self, name: str, batch: list[dict[str, Any]], key: str | None) -> list[list[dict[str, Any]]]:
        """The batch, or now and then what two callers sent at about the same time: each whole or absent by itself."""
        topic = self.store.topics.get(name)
        if key is not None or topic is None or len(batch) < 2 or self.serial % 3:
            return [batch]
        if self._is_queue(name) or not shares_submission(topic.ordered.config):
            return [batch]
        cut = 1 + self.serial % (len(batch) - 1)
        return [batch[:cut], batch[cut:]]

    def note_append(self, instance: Instance, change: Appended, token: Submission | None) -> None:
        """Tell the oracle of records that were handed out, once what their eviction takes is as it should be."""
        state = self.present(instance, "append")
        topic = self.store.by_id[instance.id]
        if token is None and state.durability != Durability.EPHEMERAL:
            raise Violation(f"append to {instance} of class {state.durability.name} waits for nothing")
        change.ram = token is None
        change.evict_floor = floor = topic.evict_floor if token is None else _evict_floor(token)
        records = change.records
        gone = oldest_over_cap([*state.records.values(), *records], state.config)
        if state.config.discard == "reject":
            gone = set()
        there = [*state.records.values(), *records]
        took = {record.seq for record in there if record.seq <= floor}
        why = wrongly_taken(self.groups.ledger, instance.id, there, gone, took)
        if why is not None:
            raise Violation(f"append to {instance} evicts through {floor}: {why}")
        if took and token is not None and floor != max(took):
            raise Violation(f"append to {instance} tells of a loss through {floor}, and {max(took)} was the last of it")
        self.counts["guard holds"] += took != gone
        if took:
            self.counts["evict by cap"] += 1
        self.oracle.memory.append(instance.id, records)
        instance.add(Step(change, token, state.durability))

    def note_eviction(self, instance: Instance | None, new: list[Record] | None, token: Submission) -> None:
        """An append in RAM that evicts records on disk logs that first, and must be asked again. `new` is what was to
        be appended; None = the caller does not know how much of it."""
        if instance is None or any(step.token is token for step in instance.steps):
            return
        state = self.present(instance, "append")
        if not token.buffers or token.buffers[0][4] != Kind.EVICT_WATERMARK:
            raise Violation(f"append to {instance} waits for something that nobody ordered")
        frame = decode_frame(token.buffers[0], 0, len(token.buffers[0]))
        floor = EvictWatermark.decode(frame.body).evict_floor
        if new is not None:
            there = [*state.records.values(), *new]
            over = oldest_over_cap(there, state.config)
            took = {seq for seq in state.records if seq <= floor}
            later = over - state.records.keys()  # of those it is seen when the append is asked for again
            why = wrongly_taken(self.groups.ledger, instance.id, there, over, took, later)
            if why is not None:
                raise Violation(f"{instance}: an append evicts, and {why}")
        instance.add(Step(Evicted(floor, 0), token))

    @staticmethod
    def rejects(state: State, batch: list[dict[str, Any]]) -> bool:
        config = state.config
        if config.discard != "reject":
            return False
        size = sum(size_of(sent(record, 1, 0)) for record in batch)
        return bool(
            (config.cap_records and len(state.records) + len(batch) > config.cap_records)
            or (config.cap_bytes and state.bytes + size > config.cap_bytes)
        )

    def delete(self, name: str, before: int | None, match: Selector | None) -> Submission | None:
        self.sweep(name)
        instance = self.instance(name)
        try:
            token, _ = self.store.delete(name, before, match)
        except TopicNotFound:
            return self.absent(instance, "delete")
        state = self.present(instance, "delete")
        assert instance is not None
        if match is None:
            assert before is not None
            below = min(before, state.head + 1)
            change = Deleted(below, frozenset())
            nothing = below <= max(state.delete_below, 1)
        else:
            hit = {
                seq
                for seq, record in state.records.items()
                if record.tag is not None and match.matches(record.tag) and (before is None or seq < before)
            }
            change = Deleted(0, frozenset(hit))
            nothing = not hit
        if nothing != (token is None) and state.durability != Durability.EPHEMERAL:
            raise Violation(f"delete in {name!r} answers {token}; it should hit {change}")
        if nothing:
            return token
        change.ram = token is None
        self.counts["delete"] += 1
        instance.add(Step(change, token, state.durability))
        return token

    def sweep(self, name: str) -> Submission | None:
        """Evict what is too old or too much, and see that no more and no less goes."""
        topic = self.store.topics.get(name)
        instance = self.instance(name)
        if topic is None or topic.closing or instance is None:
            return None
        before = (topic.evict_floor, topic.expiry_floor)
        token = self.store.sweep(topic)
        after = (topic.evict_floor, topic.expiry_floor)
        state, published = instance.ordered, instance.published
        assert state is not None
        assert published is not None
        if token is not None:
            frame = decode_frame(token.buffers[0], 0, len(token.buffers[0]))
            body = EvictWatermark.decode(frame.body)
            change = Evicted(body.evict_floor, body.expiry_floor)
        elif after != before:
            change = Evicted(*after, ram=True)
        else:
            self._check_swept(instance, state, published)
            return None
        self._check_eviction(instance, state, published, change)
        self.counts["sweep"] += 1
        instance.add(Step(change, token))
        return token

    def _check_eviction(self, instance: Instance, state: State, published: State, change: Evicted) -> None:
        now, config = self.store.clock.now_ms(), state.config
        if change.expiry_floor > state.expiry_floor:
            gone = [record for record in state.records.values() if record.seq <= change.expiry_floor]
            early = [record.seq for record in gone if now - record.ts <= config.ttl_ms]
            if not config.ttl_ms or early:
                raise Violation(f"{instance}: records {early} expired too early, by {change}")
            if change.expiry_floor not in state.records:
                raise Violation(f"{instance}: {change} tells of a loss through a record that was none")
            old = self._old(state) & published.records.keys()
            self._check_guards(instance, state, old, {record.seq for record in gone} & old)
            self.counts["expire"] += 1
        if change.evict_floor > state.evict_floor:
            over = oldest_over_cap(list(published.records.values()), config)
            took = {seq for seq in published.records if seq <= change.evict_floor}
            self._check_guards(instance, published, over, took)
            if change.evict_floor != max(took):
                raise Violation(f"{instance}: {change} tells of a loss through a record that was none")

    def _check_swept(self, instance: Instance, state: State, published: State) -> None:
        """Nothing was evicted: nothing was to be."""
        topic = self.store.by_id[instance.id]
        shard = self.store.shard_for(topic)
        if topic.frozen is not None or shard.failed is not None or shard.refusing is not None:
            return
        config = state.config
        open_ms = (self.store.clock.monotonic_ns() - self.store.opened_ns) // 1_000_000
        if config.ttl_ms and open_ms >= self.profile.ttl_grace_ms:
            self._check_guards(instance, state, self._old(state) & published.records.keys(), set())
        if not instance.pending and config.discard == "old":
            self._check_guards(instance, state, oldest_over_cap(list(state.records.values()), config), set())

    def _old(self, state: State) -> set[int]:
        now, ttl_ms = self.store.clock.now_ms(), state.config.ttl_ms
        return {record.seq for record in state.records.values() if now - record.ts > ttl_ms}

    def _check_guards(self, instance: Instance, state: State, over: set[int], took: set[int]) -> None:
        why = wrongly_taken(self.groups.ledger, instance.id, state.records.values(), over, took)
        if why is not None:
            raise Violation(f"{instance}: {why}")
        self.counts["guard holds"] += took != over

    @staticmethod
    def absent(instance: Instance | None, what: str) -> None:
        if instance is not None:
            raise Violation(f"{what}: {instance} is not found")

    @staticmethod
    def present(instance: Instance | None, what: str) -> State:
        if instance is None or instance.ordered is None:
            raise Violation(f"{what} found a topic that is not there")
        return instance.ordered


def _evict_floor(token: Submission) -> int:
    frame = token.buffers[-1]
    if frame[4] != Kind.EVICT_WATERMARK or len(token.buffers) < 2:
        return 0
    return EvictWatermark.decode(decode_frame(frame, 0, len(frame)).body).evict_floor
