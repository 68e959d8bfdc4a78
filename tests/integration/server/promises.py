"""What clients asked of a server that may die at any instant, and what it promised them by its answers.

Kept by the clients, in memory: they outlive the server. An operation is noted before it is sent and again when it was
answered; what was never answered may or may not have happened. A record tells who made it, and its bytes follow from
that:

    {"by":[run,worker,batch,index],"pad":"xx…"}    tag w<worker>.<run>.<batch>

so a tag names one batch, and only its worker ever deletes it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec

WORKERS = 4
WINDOW_MS = 3_600_000
CAP = 60

SOURCE, DEST, PICKED, FAR, CAPPED = "source", "dest", "picked", "far", "capped"
PICKED_WORKER = 1
"""Whose records the filter of the router into `picked` lets pass."""


def own(worker: int) -> str:
    """The topic in which this worker alone deletes by seq."""
    return f"own-{worker}"


def phoenix(worker: int) -> str:
    """The topic that this worker drops, and makes again by the next append."""
    return f"phoenix-{worker}"


def configs() -> dict[str, dict[str, Any]]:
    """Every topic that is made before the work begins."""
    wanted: dict[str, dict[str, Any]] = {name: {"durability": name} for name in ("fsync", "disk", "memory")}
    wanted |= {own(worker): {"durability": ("disk", "fsync", "memory")[worker % 3]} for worker in range(WORKERS)}
    wanted |= {SOURCE: {"durability": "fsync"}, DEST: {"durability": "disk"}, FAR: {"durability": "memory"}}
    wanted |= {PICKED: {"durability": "fsync"}, CAPPED: {"durability": "disk", "cap_records": CAP}}
    return {name: {"idempotency_window_ms": WINDOW_MS, **config} for name, config in wanted.items()}


def routers() -> dict[str, dict[str, Any]]:
    return {
        "source->dest": {"source": SOURCE, "dest": DEST},
        "source->picked": {
            "source": SOURCE,
            "dest": PICKED,
            "filter": f"w{PICKED_WORKER}.*",
            "guarantee": "exactly_once",
        },
        "dest->far": {"source": DEST, "dest": FAR},
    }


Maker = tuple[int, int, int, int]
"""(run, worker, batch, index)"""


def raw_of(maker: Maker) -> bytes:
    run, worker, batch, index = maker
    return b'{"by":[%d,%d,%d,%d],"pad":"%b"}' % (run, worker, batch, index, b"x" * ((batch * 7 + index * 31) % 120))


class _Made(msgspec.Struct):
    by: Maker


_made = msgspec.json.Decoder(_Made)


def maker_of(raw: bytes) -> Maker:
    return _made.decode(raw).by


@dataclass(slots=True, eq=False)
class Batch:
    topic: str
    run: int
    worker: int
    number: int
    count: int
    key: str | None
    first_seq: int | None = None
    """Known once it was answered."""
    fates: dict[str, str] = field(default_factory=dict)
    """Topic -> `gone` or `doubtful` (a delete without an answer may have hit it). Copies have fates of their own."""

    @property
    def makers(self) -> list[Maker]:
        return [(self.run, self.worker, self.number, index) for index in range(self.count)]

    @property
    def tag(self) -> str:
        return f"w{self.worker}.{self.run}.{self.number}"


class Promises:
    def __init__(self) -> None:
        self.batches: dict[tuple[int, int, int], Batch] = {}
        self.by_worker: list[list[Batch]] = [[] for _ in range(WORKERS)]
        self.below: dict[str, int] = {}
        """Deletes by seq that were answered, and those that were asked for."""
        self.below_asked: dict[str, int] = {}
        self.seen: dict[tuple[str, int], bytes] = {}
        """What readers were shown: as good as a promise."""
        self.unanswered: dict[int, Batch] = {}
        """Worker -> the append that it sent last, if nobody answered it."""
        self._lock = threading.Lock()

    def ask_append(self, batch: Batch) -> None:
        with self._lock:
            self.unanswered[batch.worker] = batch
            if (batch.run, batch.worker, batch.number) not in self.batches:
                self.batches[batch.run, batch.worker, batch.number] = batch
                self.by_worker[batch.worker].append(batch)

    def answer_append(self, batch: Batch, first_seq: int) -> None:
        batch.first_seq = first_seq
        with self._lock:
            del self.unanswered[batch.worker]

    def ask_delete(self, worker: int, topic: str, pattern: str) -> list[Batch]:
        """By tag, or with `*` everything of this worker in the topic; the batches that it will surely hit."""
        with self._lock:
            self.unanswered.pop(worker, None)
        prefix, exact = pattern.removesuffix("*"), not pattern.endswith("*")
        hit = [
            batch
            for batch in self.by_worker[worker]
            if (batch.topic == topic or (topic == DEST and batch.topic == SOURCE))
            and batch.fates.get(topic) != "gone"
            and (batch.tag == prefix if exact else batch.tag.startswith(prefix))
        ]
        for batch in hit:
            batch.fates[topic] = "doubtful"
        return hit

    @staticmethod
    def answer_delete(topic: str, hit: list[Batch]) -> None:
        for batch in hit:
            batch.fates[topic] = "gone"

    def saw(self, topic: str, records: list[tuple[int, bytes]]) -> None:
        with self._lock:
            for seq, raw in records:
                assert self.seen.setdefault((topic, seq), raw) == raw, f"{topic} {seq} shows two records"
