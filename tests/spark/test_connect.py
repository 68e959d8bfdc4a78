"""Through Spark Connect: the client knows nothing of topics, the server's Python does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import topics
from tests.spark.test_sink import records
from topics.spark.java import find_java

if TYPE_CHECKING:
    from tests.spark.conftest import Server

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
reader = spark.read.format("topics").options(path=sys.argv[1], topic="orders")
query = (
    spark.readStream.format("topics").options(path=sys.argv[1], topic="orders").load()
    .writeStream.format("memory").queryName("copied").trigger(availableNow=True).start()
)
query.awaitTermination()
found = [reader.load().count(), spark.sql("select count(*) from copied").collect()[0][0]]
try:
    reader.option("topic", "nothing").load().count()
except Exception as error:
    found.append("topic 'nothing' does not exist" in str(error))
url = sys.argv[2]  # by value, since a batch is handled in another process
there = dict(url=url, topic="connected")
spark.range(20).selectExpr("struct(id) as data").write.format("topics").mode("append").options(**there).save()

def each(batch, number):
    writer = batch.select("data").write.format("topics").mode("append").options(url=url, topic="connected.each")
    writer.options(txnAppId="connected", txnVersion=number).save()

source = spark.readStream.format("topics").options(**there).load()
copy = source.select("data").writeStream.format("topics").options(url=url, topic="connected.copy")
for query in (copy, source.writeStream.foreachBatch(each)):
    query = query.option("checkpointLocation", f"checkpoint-{len(found)}").trigger(availableNow=True).start()
    query.awaitTermination()
    found.append(query.exception() is None)
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.slow
def test_reading_writing_streams_and_errors_come_through_connect(server: Server, tmp_path: Path) -> None:
    with topics.open(tmp_path / "data") as log:
        log.create("orders")
        log.append("orders", [{"data": n} for n in range(50)])
    # A session of this process leaves its own settings in the environment.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    java = find_java(os.environ)
    if java.home is not None:
        environ["JAVA_HOME"] = java.home
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), server.url],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[done.stderr.find("Traceback") :][:3000]
    assert json.loads(done.stdout.splitlines()[-1]) == [50, 50, True, True, True]
    for name in ("connected", "connected.copy", "connected.each"):
        assert sorted(record.data["id"] for record in records(server, name)) == list(range(20))
