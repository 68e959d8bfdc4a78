"""The examples of the guide run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import topics
from tests.spark.conftest import Server
from topics.model.record import Record
from topics.spark.pipeline import PipelineOptions, run_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "spark.md"


def records(server: Server, topic: str) -> list[Any]:
    return [one.data for one in server.client.records(topic) if isinstance(one, Record)]


def test_the_examples_of_the_guide_run(spark: SparkSession, tmp_path: Path) -> None:
    rest = tmp_path / "rest"
    with topics.open(rest) as log:
        log.create("orders")
        log.append("orders", [{"data": {"id": 1}}])
    server = Server(tmp_path / "server")
    try:
        server.client.create("orders", durability="fsync", cap_records=50)
        server.client.append("orders", [{"data": {"id": n, "amount": 1.5}, "tag": "eu"} for n in range(60)])
        round_options = PipelineOptions(str(tmp_path / "history"), server.url, topics="orders", tail=True)
        assert [one.error for one in run_round(lambda: spark, round_options)] == [None]
        text = GUIDE.read_text().replace("http://127.0.0.1:4000", server.url).replace("./topics-data", str(rest))
        text = text.replace("./history", str(tmp_path / "history")).replace("./checkpoints", str(tmp_path / "points"))
        examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert len(examples) == 11
        names: dict[str, Any] = {}
        for example in examples:
            exec(example, names)
        assert names["orders"].count() == 50
        assert names["amounts"].selectExpr("sum(data.amount)").collect()[0][0] == 75.0
        assert names["history"].count() == 1
        assert [tuple(row) for row in spark.sql("select * from by_tag").collect()] == [("eu", 50)]
        (gap,) = names["everything"].filter("kind = 'gap'").collect()
        assert (gap.gap_from, gap.gap_to, gap.reason) == (1, 10, "cap")
        assert records(server, "totals") == records(server, "batch.totals") == [{"tag": "eu", "count": 50}]
        assert [data["id"] for data in records(server, "orders.copy")] == list(range(10, 60))
        assert [(tag, count) for tag, count, _ in names["by_tag"]] == [("eu", 40)]
        assert names["ever"].count() == 50
    finally:
        server.stop()
