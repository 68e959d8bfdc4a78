"""The aimed kills of the Spark tests, again and again: `python -m tests.spark.soak --rounds 100`.

Each round draws from a seed who dies, at which moment and in what kind of query, and holds the topics or tables against
what was written. Prints every round, and what went wrong with its seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from tests.spark import test_pipeline, test_pipeline_kills, test_pipeline_turns, test_sink_kills
from tests.spark.conftest import Server, start_session
from tests.spark.proxy import Moment, Proxy, proxied
from tests.spark.works import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)


@dataclass(frozen=True)
class Round:
    spark: SparkSession
    proxy: Proxy
    folder: Path
    number: int
    chance: random.Random

    @property
    def server(self) -> Server:
        return self.proxy.server

    def kill_server(self) -> str:
        moment, kind = self.chance.choice(MOMENTS), self.chance.choice(KINDS)
        test_sink_kills.test_server_killed_and_started_again_is_not_noticed_by_the_query(
            self.spark, self.proxy, self.folder, moment, kind
        )
        return f"the server, when {moment}, {kind}"

    def kill_worker(self) -> str:
        moment, kind = self.chance.choice(MOMENTS[:2]), self.chance.choice(KINDS)
        test_sink_kills.test_worker_killed_while_it_stores_is_replaced_and_its_rows_come_once(
            self.spark, self.proxy, self.folder, moment, kind
        )
        return f"a worker, when {moment}, {kind}"

    def kill_commit(self) -> str:
        moment, kind = self.chance.choice(MOMENTS[2:]), self.chance.choice(KINDS)
        test_sink_kills.test_query_whose_commit_got_no_answer_fails_and_is_run_again_without_doubles(
            self.spark, self.proxy, self.folder, moment, kind
        )
        return f"whoever commits, when {moment}, {kind}"

    def kill_driver(self) -> str:
        test_sink_kills.test_driver_killed_at_every_moment_is_followed_by_another_that_writes_the_rest(
            self.spark, self.proxy, self.folder
        )
        return "the driver, with a query at every moment"

    def kill_exporter(self) -> str:
        test_pipeline_kills.kill_exporters(self.spark, self.server, self.folder, f"killed{self.number}", self.chance)
        return "three exporters"

    def race_exporters(self) -> str:
        topic = f"raced{self.number}"
        self.server.client.create(topic, durability="fsync")
        test_pipeline.test_two_exporters_at_once_export_each_record_once(self.spark, self.server, topic, self.folder)
        return "nobody, two exporters at once"

    def race_rebuilds(self) -> str:
        topic = f"rebuilt{self.number}"
        self.server.client.create(topic, durability="fsync")
        test_pipeline_turns.test_rounds_and_rebuilds_at_once_leave_each_record_once(self.server, topic, self.folder)
        return "nobody, rounds and rebuilds at once"


# What takes a session of its own is drawn less often.
WAYS: Final[tuple[tuple[Callable[[Round], str], int], ...]] = (
    (Round.kill_server, 6),
    (Round.kill_worker, 4),
    (Round.kill_commit, 4),
    (Round.race_exporters, 4),
    (Round.race_rebuilds, 4),
    (Round.kill_driver, 1),
    (Round.kill_exporter, 1),
)


def soak(start: int, rounds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = start_session()
        server = Server(Path(place) / "server")
        server.process.shared = True
        with proxied(server) as proxy:
            for seed in range(start, start + rounds):
                chance = random.Random(seed)
                ways, weights = zip(*WAYS, strict=True)
                (way,) = chance.choices(ways, weights)
                folder = Path(place) / str(seed)
                folder.mkdir()
                began = time.monotonic()
                try:
                    told = way(Round(spark, proxy, folder, seed, chance))
                except Exception:
                    counts["failed"] += 1
                    print(f"\nround {seed} ({way.__name__}) failed:\n{traceback.format_exc()}", flush=True)
                else:
                    print(f"round {seed}: {told}, {time.monotonic() - began:.1f} s", flush=True)
                counts[way.__name__] += 1
        server.stop()
        spark.stop()
    return counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--start", type=int, default=None, help="the first seed (default: from the clock)")
    given = parser.parse_args(arguments)
    start = given.start if given.start is not None else time.time_ns() // 1_000_000 % 1_000_000_000
    print(f"rounds {start}..{start + given.rounds - 1}; one again: python -m tests.spark.soak --start ROUND --rounds 1")
    counts = soak(start, given.rounds)
    for what, count in sorted(counts.items()):
        print(f"{count:>6}  {what}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
