"""`make demo`: a shop's events through a server, a Spark stream, history tables and a report, in one go.

generator ─▶ shop.clicks, shop.orders, shop.payments ─▶ stream: revenue per hour and country ─▶ shop.revenue
                               └─▶ topics pipeline ─▶ Delta tables ─▶ report with plots
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.shop.events import DAY_MS, Shop
from topics.cli.ending import Ending
from topics.cli.exits import INTERRUPTED
from topics.client import Client

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, SparkSession

BATCH = 2_000
START_MS = 20_454 * DAY_MS
TOPICS = ("shop.clicks", "shop.orders", "shop.payments", "shop.revenue")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("topics-demo"), help="where everything goes (made anew)")
    parser.add_argument("--days", type=int, default=3, help="days of shop time (3 or more)")
    given = parser.parse_args()
    began = time.monotonic()
    folder: Path = given.folder.resolve()
    if folder.exists():
        if not folder.is_dir() or (not (folder / ".topics-demo").exists() and any(folder.iterdir())):
            print(f"{folder} holds something else: name another folder with --folder", file=sys.stderr)
            return 1
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / ".topics-demo").touch()
    shop = Shop(START_MS, days=max(given.days, 3))
    ending = Ending()
    with ending.heard(), serving(folder) as url, Client(url) as client:
        say(f"a server at {url}, its data in {folder / 'data'}")
        count, seconds = fill(client, shop)
        say(f"{count:,} events of {shop.days} days written in {seconds:.1f} s, {count / seconds:,.0f} a second")
        log = folder / "spark.log"
        say(f"starting Spark; what it has to say itself goes to {log}")
        import topics.spark

        with errors_in(log), ending.later():
            spark = topics.spark.session("topics demo", conf={"spark.sql.shuffle.partitions": "2"})
        try:
            rows = stream_revenue(spark, url, folder / "checkpoint")
            say(f"a stream wrote {rows:,} sums into shop.revenue, one for each hour and country, each once")
            exported = export(spark, url, folder / "history")
            say(f"{exported:,} records are in the tables below {folder / 'history'}")
        finally:
            if ending.told is None:
                spark.stop()
        speed = f"{count / seconds:,.0f} a second, by one client"
        records = f"{exported:,}, the events and {rows:,} sums of the stream"
        facts = {"events": f"{count:,} of {shop.days} days", "written": speed, "records in the tables": records}
        plots = report(folder, shop, facts)
    say(f"done in {time.monotonic() - began:.0f} s. Look at:")
    print(f"    {folder / 'report' / 'index.html'}")
    for name, look_at in plots:
        print(f"    {folder / 'report' / name}  {look_at}")
    print(f"    {folder / 'history' / 'shop.orders'}  a Delta table: polars.read_delta(...), DuckDB, Spark")
    data = os.path.relpath(folder / "data")
    print(f"Serve the same data again, with its page at http://127.0.0.1:4000: TOPICS_DATA_DIR={data} make serve")
    return 0


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`topics serve` on a free port, ended when the demo ends."""
    port_file = folder / "port"
    settings = {"TOPICS_DATA_DIR": str(folder / "data"), "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)}
    command = [sys.executable, "-m", "topics.cli.main", "serve"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        while not port_file.exists():
            if server.poll() is not None:
                raise SystemExit(f"the server did not start: {(folder / 'server.log').read_text()}")
            time.sleep(0.02)
        yield f"http://{port_file.read_text()}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


@contextmanager
def errors_in(log: Path) -> Iterator[None]:
    """Whoever is started in here writes its errors there: Java greets with warnings, and Spark's Python workers lament
    when a query ends before they do, which is of no use to anybody who looks at the shop."""
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def fill(client: Client, shop: Shop) -> tuple[int, float]:
    """Every event once, each topic in the order of shop time."""
    for name in TOPICS:
        client.create(name, durability="fsync")
    began, count = time.monotonic(), 0
    waiting: dict[str, list[dict[str, object]]] = {name: [] for name in TOPICS}
    for event in itertools.chain(shop.events(), (None,)):
        if event is not None:
            waiting[event.topic].append({"data": event.data, "tag": event.tag, "key": event.key})
        for name, records in waiting.items():
            if records and (event is None or len(records) >= BATCH):
                client.append(name, records)
                count += len(records)
                waiting[name] = []
    return count, time.monotonic() - began


def stream_revenue(spark: SparkSession, url: str, checkpoint: Path) -> int:
    """Revenue per hour and country, from a topic into a topic; the hours that are complete, each once."""
    orders = (
        spark.readStream.format("topics")
        .option("url", url)
        .option("topic", "shop.orders")
        .option("maxRecordsPerTrigger", "4000")
        .schema("data struct<at:bigint, country:string, total:double>")
        .load()
        .selectExpr("timestamp_millis(data.at) as at", "data.country as country", "data.total as total")
    )
    hours = (
        orders.withWatermark("at", "1 hour")
        .groupBy("country", hour_of("at"))
        .agg({"total": "sum", "*": "count"})
        .selectExpr(
            "named_struct('hour', unix_millis(window.start), 'country', country,"
            " 'revenue', round(`sum(total)`, 2), 'orders', `count(1)`) as data",
            "country as tag",
        )
    )
    query = (
        hours.writeStream.format("topics")
        .outputMode("append")
        .options(url=url, topic="shop.revenue", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with Client(url) as client:
        return client.info("shop.revenue").count


def hour_of(column: str) -> Column:
    from pyspark.sql.functions import window

    return window(column, "1 hour")


def export(spark: SparkSession, url: str, tables: Path) -> int:
    from topics.spark.pipeline import PipelineOptions, run_round

    done = list(run_round(lambda: spark, PipelineOptions(table=str(tables), url=url, topics="shop.*", tail=True)))
    for one in done:
        if one.error is not None:
            raise SystemExit(f"{one.topic}: {one.error}")
    return sum(one.rows for one in done)


def report(folder: Path, shop: Shop, facts: dict[str, str]) -> list[tuple[str, str]]:
    from examples.shop.report import Tables, write_report

    frames = {name: payloads(folder / "history" / name) for name in TOPICS}
    for name in ("shop.clicks", "shop.orders", "shop.payments"):
        frames[name]["at"] = frames[name]["at"].astype("datetime64[ms]")
    frames["shop.revenue"]["hour"] = frames["shop.revenue"]["hour"].astype("datetime64[ms]")
    tables = Tables(*(frames[name] for name in TOPICS))
    return [(plot.file, plot.look_at) for plot in write_report(folder / "report", shop, tables, facts)]


def payloads(table: Path) -> pd.DataFrame:
    """The fields of a topic's payloads as columns, from its history table."""
    import pandas as pd
    import polars

    rows = polars.read_delta(str(table)).sort("seq")["data"].str.json_decode().to_list()
    return pd.DataFrame(rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
