"""Whole lives of the Rust program, drawn by seeds: what a plain model of it holds is what an import serves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.unit.storage.rust.directory import RustDirectory, Topic, append, create, delete, drop, record, snapshot
from tests.unit.storage.rust.engine import disk_of, opened, report_of, rust, values
from topics.format.checksum import shard_of
from topics.model.errors import StorageError


@dataclass
class Model:
    """A topic as the Rust program has it in memory."""

    name: str
    id: int
    config: dict[str, object]
    head: int = 0
    base: int = 1
    records: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By seq: value and tag."""


class RustLife:
    """One process after the other on a directory, each with its own number of shards. Every write is acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topics: dict[str, Model] = {}
        self.files: dict[str, dict[int, bytearray]] = {}
        self.snapshot: bytes | None = None
        self.next_id = 1
        self.now = 1000
        self.shards = 1
        self.value = 0
        self.restart()

    def restart(self) -> None:
        self.shards = self.rng.choice((1, 1, 2, 3))
        self.now += 1  # no process ends and starts again within a millisecond

    def key(self, topic_id: int) -> str:
        return "" if self.shards == 1 else f"shard-{shard_of(topic_id, self.shards):02d}"

    def log(self, topic_id: int, frame: bytes) -> None:
        files = self.files.setdefault(self.key(topic_id), {})
        if not files or self.rng.random() < 0.1:
            files[max(files, default=0) + 1] = bytearray()
        files[max(files)] += frame

    def step(self) -> None:
        self.now += self.rng.randint(0, 5)
        known = sorted(self.topics)
        roll = self.rng.random()
        if not known or (roll < 0.08 and len(known) < 4):
            self.create()
        elif roll < 0.65:
            self.append(self.topics[self.rng.choice(known)])
        elif roll < 0.8:
            self.delete(self.topics[self.rng.choice(known)])
        elif roll < 0.84:
            topic = self.topics[self.rng.choice(known)]
            topic.config = {"durable": True, "cap_records": self.rng.randint(100, 200)}
            self.log(topic.id, create(topic.id, topic.name, self.now, **topic.config))
        elif roll < 0.87:
            topic = self.topics.pop(self.rng.choice(known))
            self.log(topic.id, drop(topic.id, topic.name))
        elif roll < 0.93:
            self.write_snapshot()
        else:
            self.restart()

    def create(self) -> None:
        name = self.rng.choice([name for name in "abcdef" if name not in self.topics])
        topic = self.topics[name] = Model(name, self.next_id, {"durable": True})
        self.next_id += 1
        self.log(topic.id, create(topic.id, name, self.now, **topic.config))

    def append(self, topic: Model) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.value += 1
            topic.head += 1
            tag = self.rng.choice(("x:1", "x:2", "y"))
            topic.records[topic.head] = (self.value, tag)
            self.log(topic.id, append(topic.id, topic.head, self.value, tag=tag, ts=self.now))

    def delete(self, topic: Model) -> None:
        bound = topic.head + 1
        kind = self.rng.randint(0, 2)
        if kind == 0:
            before = self.rng.randint(1, bound)
            self.log(topic.id, delete(topic.id, before=before, bound=bound, ts=self.now))
            topic.records = {seq: one for seq, one in topic.records.items() if seq >= before}
            topic.base = max(topic.base, before)
        elif kind == 1:
            self.log(topic.id, delete(topic.id, match=(1, "x:"), bound=bound, ts=self.now))
            topic.records = {seq: one for seq, one in topic.records.items() if not one[1].startswith("x:")}
        elif topic.records:
            seqs = self.rng.sample(sorted(topic.records), min(len(topic.records), 2))
            self.log(topic.id, delete(topic.id, seqs=seqs, ts=self.now))
            for seq in seqs:
                del topic.records[seq]

    def write_snapshot(self) -> None:
        keys = sorted(self.files)
        positions = [(max(self.files[key]), len(self.files[key][max(self.files[key])])) for key in keys]
        topics = [
            Topic(
                one.name, one.id, one.head, [record(seq, value, tag=tag) for seq, (value, tag) in one.records.items()],
                base=one.base, delete_floor=one.base - 1, delete_below=one.base, config=one.config,
            )
            for one in self.topics.values()
        ]  # fmt: skip
        self.snapshot = snapshot(topics, next_id=self.next_id, positions=positions, keys=keys)
        for key, (file, _) in zip(keys, positions, strict=True):
            for number in [number for number in self.files[key] if number < file]:
                if self.rng.random() < 0.8:
                    del self.files[key][number]

    def leave(self) -> RustDirectory:
        made = rust()
        for key, files in self.files.items():
            for number, data in files.items():
                made.wal(bytes(data), file=number, group=key, zeros=self.rng.choice((0, 64)))
        if self.snapshot is not None:
            made.snapshot(self.snapshot)
        return made


def lived(seed: int) -> RustLife:
    life = RustLife(seed)
    for _ in range(60):
        life.step()
    return life


@pytest.mark.parametrize("block", range(4))
def test_an_import_serves_what_the_rust_program_held(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        life = lived(seed)
        made = life.leave()
        store = opened(made.fs, wal_shards=life.rng.randint(1, 3))
        assert set(store.topics) == set(life.topics), f"seed {seed}"
        for name, model in life.topics.items():
            topic = store.topics[name]
            expected = {seq: b"%d" % value for seq, (value, _) in model.records.items()}
            assert values(store, name) == expected, f"seed {seed}, topic {name}"
            assert (topic.id, topic.head, topic.live) == (model.id, model.head, len(expected)), f"seed {seed}, {name}"
            assert topic.config.cap_records == model.config.get("cap_records", 0), f"seed {seed}, {name}"
        told = set(report_of(made.fs).counts) - {"unknown_topic"}
        assert not told, f"seed {seed} tells of {told}, and nothing was wrong"


@pytest.mark.parametrize("recovery", ["strict", "salvage"])
def test_spoiled_directories_are_refused_or_served_and_nothing_else_happens(recovery: str) -> None:
    for seed in range(60):
        life = lived(1000 + seed)
        made = life.leave()
        disk, rng = disk_of(made), life.rng
        sent = {b"%d" % value for value in range(1, life.value + 1)}
        for path in rng.sample(disk.files(), min(2, len(disk.files()))):
            data = bytearray(disk.read(path))
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(data) or 1)
                match rng.randint(0, 3):
                    case 0:
                        data[at : at + 1] = bytes([rng.randrange(256)])
                    case 1:
                        del data[at:]
                    case 2:
                        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 40)))
                    case _:
                        del data[at : at + rng.randint(1, 60)]
            made.put(path.removeprefix("/data/"), bytes(data))
        before = {path: disk.read(path) for path in disk.files()}
        try:
            store = opened(disk, recovery=recovery)
        except StorageError:
            assert {path: disk.read(path) for path in before} == before, f"seed {seed}: refused, and files changed"
            continue
        for name in store.topics:
            assert set(values(store, name).values()) <= sent, f"seed {seed}, topic {name}"
