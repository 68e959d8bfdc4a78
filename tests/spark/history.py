"""A random history of a few topics, the same for the same seed: `python -m tests.spark.history DIR SEED` writes it and
dies by SIGKILL, so that the directory is left as a crash leaves it."""

from __future__ import annotations

import os
import signal
import sys
from random import Random
from typing import Any

import topics

OPTIONS: dict[str, Any] = {"segment_max_events": 40, "wal_shards": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "orders": {"durability": "fsync"},
    "capped": {"durability": "disk", "cap_records": 60},
    "plain": {"durability": "disk"},
    "again": {"durability": "fsync"},
}
TAGS = ("eu.de", "eu.fr", "us", None)


def write_history(log: topics.Log, seed: int, steps: int = 120) -> None:
    rng = Random(seed)
    for name, config in CONFIGS.items():
        log.create(name, **config)
    for step in range(steps):
        name = rng.choice(sorted(CONFIGS))
        dice = rng.random()
        if dice < 0.7:
            key = f"key-{step}" if rng.random() < 0.3 else None
            records = [record(rng) for _ in range(rng.randint(1, 25))]
            for _ in range(2 if key else 1):  # said twice, stored once
                log.append(name, records, idempotency_key=key)
        elif dice < 0.8:
            log.delete(name, tag=rng.choice(("eu.*", "us", "eu.de")))
        elif dice < 0.88:
            log.delete(name, before_seq=rng.randint(1, max(log.info(name).head_seq // 2, 1)))
        elif dice < 0.93:
            log.drop("again")
            log.create("again", **CONFIGS["again"])
        else:
            log.checkpoint()


def record(rng: Random) -> dict[str, Any]:
    made: dict[str, Any] = {"data": rng.choice([{"n": rng.randrange(1000)}, "text é", [1, None], None, 1.5])}
    if (tag := rng.choice(TAGS)) is not None:
        made["tag"] = tag
    if rng.random() < 0.3:
        made["key"] = rng.choice(["k", 'quo"te', "é"])
    if rng.random() < 0.2:
        made["meta"] = {"m": rng.randrange(9)}
    if rng.random() < 0.2:
        made["node"] = "node-1"
    return made


if __name__ == "__main__":
    write_history(topics.open(sys.argv[1], **OPTIONS), int(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
