"""How fast Spark reads topics, beside the same records as Parquet (zstd) and as JSON lines.

    python benchmarks/spark.py [--records 2000000] [--rounds 3] [--curve]

One session, one copy of the data per form, all of it in the page cache; the forms take turns, so that what else the
machine does hits all alike. Trust the ratios. A scan is all eight columns to the `noop` sink.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

# The folder of this script holds an `http.py`, which would hide the module of that name from everybody.
sys.path.pop(0)

import topics
import topics.spark
from topics.format.ops import KERNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 10_000
Job = Callable[[], object]


def records(start: int, count: int) -> list[dict[str, object]]:
    """Orders of about 200 bytes a frame."""
    return [
        {
            "data": json.dumps(
                {
                    "id": number,
                    "customer": f"customer-{number * 7919 % 100_000:06d}",
                    "amount": number % 10_000 / 100,
                    "items": [number % 50, number % 31],
                    "note": f"{number * 2_654_435_761 % (1 << 64):016x}{number:020d}",
                },
                separators=(",", ":"),
            ).encode(),
            "tag": ("eu.de", "eu.fr", "us", "asia")[number % 4],
            "node": f"node-{number % 8}",
        }
        for number in range(start, start + count)
    ]


def write_topic(path: Path, count: int, segment_events: int = BATCH) -> None:
    with topics.open(path, segment_max_events=segment_events) as log:
        log.create("orders", durability="memory")
        for start in range(0, count, BATCH):
            log.append("orders", records(start, min(BATCH, count - start)))


def write_others(spark: SparkSession, source: Path, parquet: Path, lines: Path) -> None:
    """The records of the topic once more, in files of a fitting size."""
    frame = read_topic(spark, source)
    frame.repartition(4).write.option("compression", "zstd").parquet(str(parquet))
    frame.repartition(4).write.json(str(lines))


def read_topic(spark: SparkSession, path: Path, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("topics").options(path=str(path), topic="orders", **options)
    return (reader.schema(schema) if schema else reader).load()


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def scan(spark: SparkSession, path: Path) -> None:
    to_nowhere(read_topic(spark, path))


def measure(jobs: dict[str, Job], rounds: int) -> dict[str, float]:
    """Median seconds of each; one round to warm up, then turn by turn."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if turn:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def show(title: str, taken: dict[str, float], rows: int, against: str | None = None) -> None:
    print(f"\n{title}")
    for name, seconds in taken.items():
        beside = f"   {taken[against] / seconds:5.2f} x {against}" if against in taken else ""
        print(f"  {name:<28}{rows / seconds / 1e6:8.2f} M rows/s {seconds:8.2f} s{beside}")


def scans(spark: SparkSession, place: Path, rows: int, rounds: int) -> None:
    source, parquet, lines = place / "topic", place / "parquet", place / "lines"
    write_others(spark, source, parquet, lines)
    schema = "topic string, seq bigint, ts timestamp, tag string, node string, key string, data string, meta string"
    full: dict[str, Job] = {
        "parquet": lambda: to_nowhere(spark.read.parquet(str(parquet))),
        "topics": lambda: to_nowhere(read_topic(spark, source)),
        "topics, verify=false": lambda: to_nowhere(read_topic(spark, source, verify="false")),
        "json lines": lambda: to_nowhere(spark.read.schema(schema).json(str(lines))),
    }
    show("full scan, eight columns", measure(full, rounds), rows, "parquet")
    count: dict[str, Job] = {
        "topics, schema seq": lambda: read_topic(spark, source, "seq bigint").count(),
        "parquet": lambda: spark.read.parquet(str(parquet)).count(),
    }
    show("count", measure(count, rounds), rows)

    def grouped(frame: DataFrame) -> Job:
        return frame.filter("tag like 'eu%'").groupBy("node").count().collect

    group: dict[str, Job] = {
        "parquet": lambda: grouped(spark.read.parquet(str(parquet)))(),
        "topics, schema tag, node": lambda: grouped(read_topic(spark, source, "tag string, node string"))(),
        "topics, option tag": lambda: grouped(read_topic(spark, source, "tag string, node string", tag="eu*"))(),
    }
    show("filter and group", measure(group, rounds), rows, "parquet")


def curve(spark: SparkSession, place: Path, rounds: int) -> None:
    """Ten times the segments, ten times the time: planning must not be what grows."""
    print("\nsegments of 1,000 records each, scanned whole")
    for segments in (10, 30, 100, 300, 1000):
        path = place / f"curve-{segments}"
        write_topic(path, segments * 1000, 1000)
        jobs: dict[str, Job] = {"scan": partial(scan, spark, path)}
        taken = measure(jobs, rounds)["scan"]
        print(f"  {segments:>5} segments {taken:8.2f} s {taken / segments * 1000:8.2f} ms a segment")
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curve", action="store_true", help="only the curve over the number of segments")
    given = parser.parse_args()
    print(f"compiled kernel: {'yes' if KERNEL else 'NO'}")
    with tempfile.TemporaryDirectory(prefix="topics-spark-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = Path(folder)
        spark = topics.spark.session("benchmark", conf={"spark.driver.memory": "4g"})
        if not given.curve:
            began = time.perf_counter()
            write_topic(place / "topic", given.records)
            size = sum(file.stat().st_size for file in place.rglob("seg-*.data"))
            taken = time.perf_counter() - began
            print(f"{given.records:,} records, {size / given.records:.0f} bytes a frame, written in {taken:.0f} s")
            scans(spark, place, given.records, given.rounds)
        curve(spark, place, given.rounds)
        spark.stop()


if __name__ == "__main__":
    main()
