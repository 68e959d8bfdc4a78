"""How fast Spark reads and writes topics, beside the same records as Parquet (zstd) and as JSON lines.

    .venv/bin/python benchmarks/spark.py                     everything, about five minutes
    .venv/bin/python benchmarks/spark.py --only sink         one of scan, count, group, export, sink, stream, curve
    .venv/bin/python benchmarks/spark.py --records 200000 --rounds 1

One session, one copy of the data per form, all of it in the page cache; the forms take turns, so that what else the
machine does hits all alike. Trust the ratios, and on a busy machine the CPU time. A number is the median of the rounds.
A scan is all eight columns to the `noop` sink; an export is a whole round of the pipeline, its Delta commit included;
the sink writes to a server that runs on the same cores; a micro-batch is one record from a topic into another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

# The folder of this script would make `benchmarks/http.py` the module `http` of everybody else.
sys.path[0] = str(Path(__file__).parent.parent)

import topics  # noqa: E402
import topics.spark  # noqa: E402
from benchmarks.servers import Server, directory, running, start_topics  # noqa: E402
from topics.client.sync import Client  # noqa: E402
from topics.format.ops import KERNEL  # noqa: E402
from topics.spark.pipeline import PipelineOptions, run_round  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 10_000
COLUMNS = "topic string, seq bigint, ts timestamp, tag string, node string, key string, data string, meta string"
MICRO_BATCHES = (5, 50)
"""Which count: the first ones warm up."""
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
                    "note": f"{number * 2_654_435_761 % (1 << 64):016x}{number:047d}",
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


@dataclass(frozen=True)
class Taken:
    seconds: float
    cpu: float
    """Seconds of all processes of this run together: Spark, its workers, servers."""


def measure(jobs: dict[str, Job], rounds: int) -> dict[str, Taken]:
    """Medians of each; one round to warm up, then turn by turn."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            began, used = time.perf_counter(), own_cpu_s()
            job()
            if turn:
                taken[name].append((time.perf_counter() - began, own_cpu_s() - used))
    return {name: Taken(*map(statistics.median, zip(*times, strict=True))) for name, times in taken.items()}


_ticks: dict[tuple[int, str], int] = {}
"""By process and its start: what it had used when it was last seen. Spark's daemon forgets the workers that end."""


def own_cpu_s() -> float:
    """CPU time of this process and of everything it started."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(folder.name)] = int(fields[1])
                used[int(folder.name)] = fields[19], int(fields[11]) + int(fields[12])

    def is_own(process: int) -> bool:
        while process and process != os.getpid():
            process = parents.get(process, 0)
        return process != 0

    for process, (born, ticks) in used.items():
        if is_own(process):
            _ticks[process, born] = ticks
    return sum(_ticks.values()) / os.sysconf("SC_CLK_TCK")


def show(
    title: str, taken: dict[str, Taken], rows: int, against: str | None = None, goals: dict[str, str] | None = None
) -> None:
    print(f"\n{title}")
    for name, one in taken.items():
        rate = f"{rows / one.seconds / 1e6:8.2f} M rows/s {one.seconds:8.2f} s {one.cpu / rows * 1e9:7.0f} ns CPU a row"
        beside = f"   {taken[against].seconds / one.seconds:5.2f} x {against}" if against in taken else ""
        goal = f"   goal {goals[name]}" if goals and name in goals else ""
        print(f"  {name:<26}{rate}{beside}{goal}")


@dataclass(frozen=True)
class Bench:
    spark: SparkSession
    place: Path
    rows: int
    rounds: int

    @property
    def source(self) -> Path:
        return self.place / "topic"

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.place / "parquet"))

    def lines(self) -> DataFrame:
        return self.spark.read.schema(COLUMNS).json(str(self.place / "lines"))

    def topic(self, schema: str | None = None, **options: str) -> DataFrame:
        return read_topic(self.spark, self.source, schema, **options)


def scan_whole(bench: Bench) -> None:
    jobs: dict[str, Job] = {
        "parquet": lambda: to_nowhere(bench.parquet()),
        "topics": lambda: to_nowhere(bench.topic()),
        "topics, verify=false": lambda: to_nowhere(bench.topic(verify="false")),
        "json lines": lambda: to_nowhere(bench.lines()),
    }
    goals = {"topics": ">= 0.8 x parquet"}
    show("full scan, eight columns", measure(jobs, bench.rounds), bench.rows, "parquet", goals)


def count_rows(bench: Bench) -> None:
    """Parquet has the count of a file in its foot, and reads nothing else."""
    jobs: dict[str, Job] = {
        "parquet": lambda: bench.parquet().count(),
        "topics, schema seq": lambda: bench.topic("seq bigint").count(),
        "json lines": lambda: bench.lines().count(),
    }
    goals = {"topics, schema seq": ">= 5 M rows/s"}
    show("count", measure(jobs, bench.rounds), bench.rows, "parquet", goals)


def group_rows(bench: Bench) -> None:
    def grouped(frame: DataFrame) -> None:
        frame.filter("tag like 'eu%'").groupBy("node").count().collect()

    names = "tag string, node string"
    jobs: dict[str, Job] = {
        "parquet": lambda: grouped(bench.parquet()),
        "topics, schema tag, node": lambda: grouped(bench.topic(names)),
        "topics, option tag": lambda: grouped(bench.topic(names, tag="eu*")),
        "json lines": lambda: grouped(bench.lines()),
    }
    show("filter and group", measure(jobs, bench.rounds), bench.rows, "parquet")


def export(bench: Bench) -> None:
    """A round of the pipeline, checked and committed, beside Spark that writes the same columns from Parquet."""
    folder = bench.place / "export"

    def rewrite() -> None:
        frame = bench.parquet().drop("topic").write.option("compression", "zstd")
        frame.mode("overwrite").parquet(str(folder / "parquet"))

    def run_pipeline() -> None:
        shutil.rmtree(folder / "table", ignore_errors=True)
        options = PipelineOptions(str(folder / "table"), path=str(bench.source), tail=True)
        (done,) = run_round(lambda: bench.spark, options)
        assert done.rows == bench.rows, done

    jobs: dict[str, Job] = {"df.write.parquet": rewrite, "topics pipeline": run_pipeline}
    goals = {"topics pipeline": ">= 1.5 M records/s and 1.0 x df.write.parquet"}
    show("export to Parquet", measure(jobs, bench.rounds), bench.rows, "df.write.parquet", goals)
    shutil.rmtree(folder)


def write_sink(bench: Bench) -> None:
    """Records from Parquet into a topic of a running server, durable and visible when the job is done."""
    with directory(None) as path, running(start_topics(path)) as server, client_of(server) as client:
        cpu: list[float] = []  # of the server, per record

        def sink() -> None:
            before = server.cpu_ns()
            frame = bench.parquet().select("data", "tag", "node").write.format("topics").mode("append")
            frame.options(url=url_of(server), topic="out").save()
            assert client.heads({"out": 1}).topics["out"].head_seq == bench.rows
            cpu.append((server.cpu_ns() - before) / bench.rows)
            client.drop("out")

        jobs: dict[str, Job] = {
            "json lines": lambda: bench.parquet().select("data", "tag", "node").write.mode("overwrite").json(
                str(bench.place / "sink")
            ),
            "topics": sink,
        }  # fmt: skip
        taken = measure(jobs, bench.rounds)
        show("write, from Parquet", taken, bench.rows, "json lines", {"topics": ">= 0.5 M records/s"})
        print(f"  {statistics.median(cpu[1:]):.0f} ns of the server's CPU per record")


def stream_records(bench: Bench) -> None:
    """How long a micro-batch takes that has one record to carry: source and sink on one server."""
    with directory(None) as path, running(start_topics(path)) as server, client_of(server) as client:
        client.create("in")
        client.create("out")
        reader = bench.spark.readStream.format("topics").options(url=url_of(server), topic="in")
        writer = reader.load().select("data").writeStream.format("topics").options(url=url_of(server), topic="out")
        query = writer.option("checkpointLocation", str(path / "checkpoint")).start()
        waited = []
        try:
            for number in range(MICRO_BATCHES[1]):
                began = time.perf_counter()
                client.append("in", [{"data": number}])
                while client.heads({"out": number + 1}, wait_ms=1000).topics["out"].head_seq <= number:
                    pass
                waited.append(time.perf_counter() - began)
            query.processAllAvailable()
            batches = [one.durationMs for one in query.recentProgress if one.numInputRows]
        finally:
            query.stop()
    steps = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
    middle = {step: statistics.median(one.get(step, 0) for one in batches[MICRO_BATCHES[0] :]) for step in steps}
    print("\nmicro-batch of one record, topic to topic")
    print(f"  {'from append to append':<28}{statistics.median(waited[MICRO_BATCHES[0] :]) * 1000:8.0f} ms")
    for step, took in middle.items():
        print(f"  {step:<28}{took:8.0f} ms{'   goal <= 300 ms' if step == steps[0] else ''}")


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def client_of(server: Server) -> Client:
    return Client(url_of(server))


def curve(bench: Bench) -> None:
    """Ten times the segments, ten times the time: planning must not be what grows."""
    print("\nsegments of 1,000 records each, scanned whole")
    for segments in (10, 30, 100, 300, 1000):
        path = bench.place / f"curve-{segments}"
        write_topic(path, segments * 1000, 1000)
        jobs: dict[str, Job] = {"scan": partial(scan, bench.spark, path)}
        taken = measure(jobs, bench.rounds)["scan"].seconds
        print(f"  {segments:>5} segments {taken:8.2f} s {taken / segments * 1000:8.2f} ms a segment")
        shutil.rmtree(path)


PARTS: dict[str, Callable[[Bench], None]] = {
    "scan": scan_whole, "count": count_rows, "group": group_rows, "export": export, "sink": write_sink,
    "stream": stream_records, "curve": curve,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    given = parser.parse_args()
    chosen = given.only or list(PARTS)
    print(f"compiled kernel: {'yes' if KERNEL else 'NO'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="topics-spark-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = Path(folder)
        spark = topics.spark.session("benchmark", conf={"spark.driver.memory": "4g"})
        if set(chosen) - {"stream", "curve"}:
            began = time.perf_counter()
            write_topic(place / "topic", given.records)
            size = sum(file.stat().st_size for file in place.rglob("seg-*.data"))
            taken = time.perf_counter() - began
            print(f"{given.records:,} records, {size / given.records:.0f} bytes a frame, written in {taken:.0f} s")
            write_others(spark, place / "topic", place / "parquet", place / "lines")
        bench = Bench(spark, place, given.records, given.rounds)
        for name in chosen:
            PARTS[name](bench)
        spark.stop()


if __name__ == "__main__":
    main()
