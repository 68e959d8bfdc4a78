"""A history table and the live rest of its topic as one DataFrame, without a seam: `topics.spark.table(...)`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from topics.model.errors import InvalidRequest
from topics.spark.options import Options, parse_options, without_scheme
from topics.spark.origin import open_origin
from topics.spark.session import activate
from topics.spark.words import ARGUMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "seq bigint, ts timestamp, tag string, node string, key string, data string, meta string"


def table(
    spark: SparkSession,
    table_url: str,
    server_url: str | None = None,
    as_of_seq: int | None = None,
    *,
    token: str | None = None,
    gap_policy: Literal["fail", "skip"] = "fail",
) -> DataFrame:
    """Every live record of a topic once: those of one version of its history table, and from that version's mark on
    those of the server. Without `server_url` the table alone. `as_of_seq` ends it with that seq.

    Records deleted after they were exported are still in the table, until deletes follow into it. Those that were lost
    before they were exported fail the query, unless `gap_policy` says to read on.
    """
    # Every worker of Spark imports this package, and none makes tables.
    from topics.spark.history import app_id, is_table, open_table, paths_of

    if gap_policy not in ("fail", "skip"):
        raise InvalidRequest(
            f"gap_policy is {gap_policy!r}: give fail or skip; rows for gaps have no place in a table's columns, and "
            "`topics pipeline status` shows the gaps"
        )
    folder = without_scheme(table_url)
    if not is_table(folder):
        raise InvalidRequest(f"{table_url} is no history table: topics pipeline run --table writes one per topic")
    loaded = open_table(folder)
    kept = loaded.metadata().configuration
    if "topics.topic" not in kept:
        raise InvalidRequest(f"{table_url} is a Delta table of something else: it names no topic")
    instance = f"{kept['topics.store']}-{kept['topics.topic_id']}"
    mark = loaded.transaction_version(app_id(instance)) or 1
    files = loaded.file_uris() if "://" in folder else paths_of(loaded, folder)
    if files:
        # Names, and no globs: a folder may be called [old] or {new}.
        reader = spark.read.option("__globPaths__", "false")
        frame = reader.parquet(*files).selectExpr(*(column.split()[0] for column in SCHEMA.split(", ")))
    else:
        frame = spark.createDataFrame([], SCHEMA)
    if server_url is not None:
        activate(spark)
        asked = {"url": server_url, "topic": kept["topics.topic"], "gapPolicy": gap_policy}
        options = parse_options(asked if token is None else {**asked, "token": token})
        check_instance(options, kept["topics.topic"], instance)
        if options.token is not None:  # said to Spark, which knows the environment only as it was at its start
            asked["token"] = options.token
        reader = spark.read.format("topics").options(**asked).option("startSeq", str(mark))
        frame = frame.unionByName(reader.schema(SCHEMA).load())
    return frame if as_of_seq is None else frame.where(f"seq <= {int(as_of_seq)}")


def check_instance(options: Options, topic: str, instance: str) -> None:
    """InvalidRequest if the server's topic is not the one of the table."""
    heads = open_origin(replace(options, words=ARGUMENTS)).heads({topic: 1})
    if topic not in heads:
        raise InvalidRequest(f"the server at {options.url} has no topic {topic!r}, whose history the table holds")
    if heads[topic].id != instance:
        raise InvalidRequest(f"the table holds another instance of topic {topic!r} than the server at {options.url}")
