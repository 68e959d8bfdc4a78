"""A program on a cluster: reads a topic slowly and prints the seqs it got, as JSON.

    python -m tests.spark.cluster_driver MASTER URL TOPIC STARTED

`STARTED` is a file that appears when a task is in the middle of its work.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import topics.spark


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

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            Path(started).touch()
            time.sleep(0.3)
            yield batch

    reader = spark.read.format("topics").options(url=url, topic=topic, minPartitions="16").schema("seq bigint")
    rows = reader.load().mapInArrow(slowly, "seq bigint").collect()
    print(json.dumps(sorted(row.seq for row in rows)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
