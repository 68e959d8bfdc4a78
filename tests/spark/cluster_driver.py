"""A program on a cluster: reads a topic slowly and prints the seqs it got, as JSON; when it gets a line, it writes the
rows of `tests.spark.works`, in more partitions than there are cores.

    python -m tests.spark.cluster_driver MASTER URL TOPIC STARTED

`STARTED` is a file that appears when a task is in the middle of its reading.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import topics.spark
from tests.spark.works import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(master: str, url: str, topic: str, started: str) -> None:
    spark = topics.spark.session(
        "cluster",
        master,
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
        },
    )
    print(json.dumps(read(spark, url, topic, started)), flush=True)
    sys.stdin.readline()
    Work(f"{topic}-write", "batch-of-two", url, Path(started)).run(spark, partitions=8)
    spark.stop()


def read(spark: SparkSession, url: str, topic: str, started: str) -> list[int]:
    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            Path(started).touch()
            time.sleep(0.3)
            yield batch

    reader = spark.read.format("topics").options(url=url, topic=topic, minPartitions="16").schema("seq bigint")
    rows = reader.load().mapInArrow(slowly, "seq bigint").collect()
    return sorted(row.seq for row in rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
