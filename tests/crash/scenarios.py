"""The scenarios that are swept: what is there before (`prepare`), and the operation whose every file call fails once.

Each is tiny, so that every call of it can be swept. `act` may meet errors of ours after an injected fault; `Sweep`
tolerates those and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.crash.life import Life
from tests.crash.staged_life import StagedLife

Step = Callable[[Life], None]


@dataclass(frozen=True)
class Scenario:
    name: str
    prepare: list[Step]
    """Builds the disk, in an open store. The store is then killed, unless the last step closed it."""
    act: list[Step]
    """What is swept. An empty list: the opening itself."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the store while `prepare` runs and later."""
    reopened: dict[str, Any] = field(default_factory=dict)
    """Options that differ from `act` on."""
    warm: bool = True
    """The store is opened before the sweep begins; else opening is a part of it."""


def create(name: str, **config: Any) -> Step:
    return lambda life: life.create(name, **config)


def append(name: str, count: int = 1, tag: str | None = None, key: str | None = None) -> Step:
    def step(life: Life) -> None:
        life.append(name, count, tag, key)

    return step


def delete(name: str, before_seq: int | None = None, tag: str | None = None) -> Step:
    return lambda life: life.delete(name, before_seq, tag)


def configure(name: str, **config: Any) -> Step:
    return lambda life: life.configure(name, **config)


def drop(name: str) -> Step:
    return lambda life: life.drop(name)


def wait(ms: int) -> Step:
    return lambda life: life.clock.advance(ms)


def sweep(name: str) -> Step:
    return lambda life: life.sweep(name)


def stage(name: str, txn: str, part: str, count: int = 1) -> Step:
    def step(life: Life) -> None:
        StagedLife(life).put(name, txn, part, count)

    return step


def commit(txn: str, topics: dict[str, list[tuple[str, int]]]) -> Step:
    def step(life: Life) -> None:
        StagedLife(life).commit(txn, topics)

    return step


def abort(name: str, txn: str) -> Step:
    def step(life: Life) -> None:
        StagedLife(life).abort(name, txn)

    return step


def checkpoint(life: Life) -> None:
    life.store.checkpoint()


def sync(life: Life) -> None:
    life.sync()


def close(life: Life) -> None:
    life.close()


def power_cut(life: Life) -> None:
    """A cut and a recovery in the middle of the preparation."""
    life.power_cut()
    life.reopen()


def fill(name: str) -> list[Step]:
    """Records in sealed segments, in the active pair and in the WAL, some of them tagged."""
    steps: list[Step] = [append(name, 2, "eu:1"), append(name, 2, "us:1"), checkpoint]
    return [*steps, append(name, 3, "eu:2"), append(name, 1), checkpoint, append(name, 2, "eu:3")]


def appends(cls: str) -> Scenario:
    return Scenario(
        f"append_{cls}",
        [create("a", durability=cls), append("a", 1)],
        [append("a", 2, "x", "key-1"), append("a", 1), append("a", 2, "x", "key-1"), append("a", 3), sync],
    )


SCENARIOS = [
    Scenario("first_start", [], [create("a", durability="fsync"), append("a", 2)], warm=False),
    appends("fsync"),
    appends("disk"),
    appends("memory"),
    appends("ephemeral"),
    Scenario(
        "rotate",
        [create("a", durability="fsync"), create("b")],
        [append("a", 4), append("b", 4), append("a", 4), append("b", 4), append("a", 4)],
        {"wal_file_bytes": 1024},
    ),
    Scenario(
        "rotate_into_reserved_files",
        [create("a", durability="fsync"), create("b")],
        [append("a", 9), append("b", 9), sync, append("a", 9), append("b", 4)],
        {"wal_filled_bytes": 1024},
    ),
    Scenario(
        "rotate_onto_recycled_files",
        [create("a", durability="fsync"), *[append("a", 4)] * 6, checkpoint, append("a", 4), checkpoint],
        [checkpoint, *[append("a", 4)] * 4, checkpoint, *[append("a", 4)] * 2],
        {"wal_file_bytes": 1024},
    ),
    Scenario(
        "rotate_onto_blanked_files",
        [create("a", durability="fsync"), *[append("a", 9)] * 6, checkpoint, append("a", 9), checkpoint],
        [checkpoint, *[append("a", 9)] * 4, checkpoint, *[append("a", 9)] * 2],
        {"wal_file_bytes": 2048, "wal_filled_bytes": 1024},
    ),
    Scenario(
        "checkpoint",
        [create("a", durability="fsync"), create("b"), append("a", 2, "x"), append("b", 2)],
        [checkpoint],
        {"segment_max_events": 100},
    ),
    Scenario(
        "checkpoint_onto_an_active_pair",
        [create("a", durability="fsync"), append("a", 2, "x"), checkpoint, append("a", 2)],
        [checkpoint, append("a", 1), checkpoint],
        {"segment_max_events": 100},
    ),
    Scenario(
        "seal",
        [create("a", durability="fsync"), append("a", 2, "x"), checkpoint, append("a", 5, "y")],
        [checkpoint, append("a", 1), checkpoint],
    ),
    Scenario(
        "seal_by_age",
        [create("a", durability="fsync"), append("a", 2, "x"), checkpoint],
        [wait(2000), checkpoint, append("a", 1), checkpoint],
        {"segment_max_age_ms": 1000, "segment_max_events": 100},
    ),
    Scenario(
        "snapshot",
        [create("a", durability="fsync"), append("a", 1), checkpoint],
        [configure("a", durability="disk"), checkpoint, append("a", 1), checkpoint],
        {"segment_max_events": 100},
    ),
    Scenario(
        "evict_by_record_cap",
        [create("a", durability="fsync", cap_records=4), append("a", 3), checkpoint, append("a", 1)],
        [append("a", 2), append("a", 3), checkpoint, append("a", 1), checkpoint],
    ),
    Scenario(
        "evict_by_byte_cap",
        [create("a", durability="disk", cap_bytes=40), append("a", 3), checkpoint, append("a", 1)],
        [append("a", 2), append("a", 3), checkpoint],
    ),
    Scenario(
        "evict_by_age",
        [create("a", durability="fsync", ttl_ms=1000), append("a", 4), checkpoint, wait(600), append("a", 2)],
        [wait(600), sweep("a"), append("a", 1), checkpoint, wait(1100), sweep("a"), checkpoint],
    ),
    Scenario(
        "delete_by_seq",
        [create("a", durability="fsync"), *fill("a")],
        [delete("a", before_seq=3), append("a", 1), checkpoint, delete("a", before_seq=9), checkpoint],
    ),
    Scenario(
        "delete_by_tag",
        [create("a", durability="fsync"), *fill("a")],
        [delete("a", tag="us:1"), delete("a", tag="eu:*"), append("a", 1, "eu:1"), checkpoint],
    ),
    Scenario(
        "delete_by_tag_in_class_disk",
        [create("a", durability="disk"), *fill("a")],
        [delete("a", tag="eu:*"), append("a", 1, "eu:1"), checkpoint],
    ),
    Scenario(
        "drop_of_whole_segments",
        [create("a", durability="fsync"), append("a", 9, "x"), checkpoint, append("a", 2), checkpoint],
        [delete("a", before_seq=7), checkpoint, append("a", 1), delete("a", tag="x"), checkpoint],
    ),
    Scenario(
        "topic_delete",
        [create("a", durability="fsync"), *fill("a"), create("b"), append("b", 2), checkpoint],
        [drop("a"), checkpoint, create("a", durability="fsync"), append("a", 2), checkpoint],
    ),
    Scenario(
        "reshard_to_more",
        [create("a", durability="fsync"), create("b"), create("c"), *fill("a"), append("b", 2), append("c", 1)],
        [append("a", 1), append("b", 1), append("c", 1), checkpoint, checkpoint],
        reopened={"wal_shards": 3},
        warm=False,
    ),
    Scenario(
        "reshard_to_fewer",
        [create("a", durability="fsync"), create("b"), create("c"), *fill("a"), append("b", 2), append("c", 1)],
        [append("a", 1), append("b", 1), append("c", 1), checkpoint, checkpoint],
        {"wal_shards": 3},
        {"wal_shards": 2},
        warm=False,
    ),
    Scenario(
        "recovery",
        [
            create("a", durability="fsync"),
            create("b"),
            *fill("a"),
            append("b", 3),
            delete("a", tag="eu:*"),
            checkpoint,
            append("a", 4),
            append("b", 3),
            delete("a", before_seq=3),
            create("c"),
            append("c", 1),
            drop("c"),
            sync,
        ],
        [],
        warm=False,
    ),
    Scenario(
        "recovery_after_a_power_cut",
        [
            create("a", durability="fsync"),
            create("b"),
            *fill("a"),
            append("b", 3),
            power_cut,
            append("a", 2),
            append("b", 2),
            delete("b", before_seq=2),
            power_cut,
            append("b", 5),
            append("a", 1),
        ],
        [],
        warm=False,
    ),
    Scenario(
        "clean_stop",
        [create("a", durability="fsync"), create("b"), *fill("a"), append("b", 3)],
        [close],
    ),
    Scenario(
        "start_after_a_clean_stop",
        [create("a", durability="fsync"), create("b"), *fill("a"), append("b", 3), close],
        [],
        warm=False,
    ),
    Scenario(
        "change_of_class",
        [create("a", durability="memory"), append("a", 2), create("e", durability="ephemeral"), append("e", 2)],
        [
            configure("a", durability="disk"),
            append("a", 2),
            configure("e", durability="fsync"),
            append("e", 1),
            configure("a", durability="fsync"),
            append("a", 1),
            checkpoint,
        ],
    ),
    Scenario(
        "stage_and_commit",
        [create("a", durability="fsync"), append("a", 1)],
        [
            stage("a", "t1", "p0", 2),
            stage("a", "t1", "p1"),
            commit("t1", {"a": [("p0", 2)]}),
            append("a", 1),
            commit("t1", {"a": [("p0", 2)]}),
            checkpoint,
            checkpoint,
        ],
    ),
    Scenario(
        "commit_over_several_topics",
        [
            create("a", durability="fsync"),
            create("b"),
            append("b", 1),
            stage("a", "app@1", "p0"),
            stage("b", "app@1", "p0", 2),
        ],
        [commit("app@1", {"a": [("p0", 1)], "b": [("p0", 2)]}), append("b", 1), checkpoint],
        {"wal_shards": 3},
    ),
    Scenario(
        "abort_of_staged_parts",
        [create("a", durability="fsync"), stage("a", "t1", "p0"), stage("a", "t1", "p1")],
        [abort("a", "t1"), stage("a", "t1", "p0"), commit("t1", {"a": [("p0", 1)]})],
    ),
    Scenario(
        "recovery_of_staged_parts",
        [
            create("a", durability="fsync"),
            create("b"),
            stage("a", "t1", "p0", 2),
            commit("t1", {"a": [("p0", 2)]}),
            checkpoint,
            stage("a", "t2", "p0"),
            stage("b", "t2", "p0"),
            commit("t2", {"a": [("p0", 1)], "b": [("p0", 1)]}),
            stage("a", "t3", "p0"),
            append("a", 1),
        ],
        [],
        {"wal_shards": 2},
        warm=False,
    ),
]
