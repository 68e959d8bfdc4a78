"""Queries that write into topics, such that one can tell whether every row came once and in order.

    python -m tests.spark.works URL FOLDER NAME=KIND …

runs several at once in a session of its own, each when a line tells it to begin: Spark gives a Python process ten
seconds to start, which all of them together may not get on a slow machine.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from topics.client.sync import Client
from topics.model.record import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["batch", "stream", "batch-of-two", "stream-of-two"]
ROWS: Final = 40


@dataclass(frozen=True)
class Work:
    app: str
    kind: Kind
    url: str
    folder: Path

    @property
    def source(self) -> str:
        return f"{self.app}.source"

    @property
    def topics(self) -> list[str]:
        return [f"{self.app}.{name}" for name in (("even", "odd") if self.kind.endswith("two") else ("all",))]

    def prepare(self, client: Client) -> None:
        """What a stream reads is durable at once."""
        if self.kind.startswith("stream"):
            client.create(self.source, durability="fsync")
            client.append(self.source, [{"data": n} for n in range(ROWS)])

    def run(self, spark: SparkSession, format_name: str = "topics", partitions: int = 2) -> None:
        """The same transaction every time."""
        options = {"url": self.url, "txnAppId": self.app}
        if self.kind.startswith("stream"):
            reader = spark.readStream.format("topics").options(url=self.url, topic=self.source, minPartitions="2")
            writer = self._rows(reader.load(), "cast(data as bigint)").writeStream.format(format_name)
            writer = writer.options(**options, checkpointLocation=str(self.folder / self.app))
            writer.trigger(availableNow=True).start().awaitTermination()
        else:
            frame = self._rows(spark.range(0, ROWS, 1, partitions), "id")
            frame.write.format(format_name).mode("append").options(**options, txnVersion="1").save()

    def _rows(self, frame: DataFrame, number: str) -> DataFrame:
        topic = f"'{self.topics[0]}'"
        if len(self.topics) == 2:
            topic = f"if({number} % 2 = 0, {topic}, '{self.topics[1]}')"
        return frame.selectExpr(f"{topic} as topic", f"cast({number} as string) as data")

    def found(self, client: Client) -> list[list[Any]]:
        there = {one.topic for one in client.topics()}
        return [
            [one.data for one in client.records(topic) if isinstance(one, Record)] if topic in there else []
            for topic in self.topics
        ]

    @property
    def wanted(self) -> list[list[int]]:
        """Partitions follow each other, so the order inside each shows in the order of all."""
        step = len(self.topics)
        return [list(range(first, ROWS, step)) for first in range(step)]


def main(url: str, folder: str, *named: str) -> None:
    import topics.spark

    works = [Work(app, kind, url, Path(folder)) for app, _, kind in (name.partition("=") for name in named)]  # type: ignore[arg-type]
    topics.spark.session("works", f"local[{2 * len(works)}]", conf={"spark.driver.memory": "512m"})

    def run(work: Work) -> None:
        work.run(topics.spark.session())  # active in this thread, too

    with ThreadPoolExecutor(len(works)) as pool:
        running = []
        for work in works:
            sys.stdin.readline()
            running.append(pool.submit(run, work))
        for one in running:
            one.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
