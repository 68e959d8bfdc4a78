"""A history table and the live rest of its topic as one DataFrame, without a seam: `topics.spark.table(...)`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from topics.model.errors import InvalidRequest, RecordsLost
from topics.spark.options import Options, parse_options, without_scheme
from topics.spark.origin import open_origin
from topics.spark.places import Head
from topics.spark.session import activate
from topics.spark.words import ARGUMENTS

if TYPE_CHECKING:
    from deltalake import DeltaTable
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
    those of the server. Without `server_url` the table alone. `as_of_seq` ends it with that seq; where the table goes
    that far, nothing is asked of the server.

    Records deleted after they were exported are still in the table, until deletes follow into it. Those that were lost
    before they were exported fail the query, unless `gap_policy` says to read on. As in a read from the earliest
    record, what a topic had lost before the first one it gave was not asked for.
    """
    # Every worker of Spark imports this package, and none makes tables.
    from topics.spark.history import History, app_id, is_table, open_table, other_features, paths_of

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
    features = other_features(loaded)
    if features is not None:
        raise InvalidRequest(
            f"another writer has changed how {table_url} is to be read ({features}), and its files alone do not tell "
            "what is in it any more: read it with a Delta reader, or have the table rebuilt"
        )
    instance = f"{kept['topics.store']}-{kept['topics.topic_id']}"
    topic = kept["topics.topic"]
    mark = loaded.transaction_version(app_id(instance)) or 1
    last = None if as_of_seq is None else int(as_of_seq)
    first = first_seq(loaded)
    if gap_policy == "fail":
        gaps = History(folder, topic, loaded).gaps()
        check_gaps(topic, gaps, mark if first is None else first, mark - 1 if last is None else min(last, mark - 1))
    files = loaded.file_uris() if "://" in folder else paths_of(loaded, folder)
    if files:
        # Names, and no globs: a folder may be called [old] or {new}.
        reader = spark.read.option("__globPaths__", "false")
        frame = reader.parquet(*files).selectExpr(*(column.split()[0] for column in SCHEMA.split(", ")))
    else:
        frame = spark.createDataFrame([], SCHEMA)
    if server_url is not None and (last is None or last >= mark):
        activate(spark)
        asked = {"url": server_url, "topic": topic, "gapPolicy": gap_policy}
        options = parse_options(asked if token is None else {**asked, "token": token})
        head = check_instance(options, topic, instance, mark)
        if options.token is not None:  # said to Spark, which knows the environment only as it was at its start
            asked["token"] = options.token
        if first is not None:  # a table without a record begins nowhere, and so does what follows it
            asked["startSeq"] = str(mark)
        if last is not None:
            asked["endSeq"] = str(min(last, head.head_seq) + 1)
        if first is not None or last is None or last >= head.earliest_seq:
            reader = spark.read.format("topics").options(**asked)
            frame = frame.unionByName(reader.schema(SCHEMA).load())
    return frame if last is None else frame.where(f"seq <= {last}")


def first_seq(loaded: DeltaTable) -> int | None:
    """Of the table's records; None if it has none. A table that lacks the statistics is taken to begin at seq 1."""
    import pyarrow as pa

    files = pa.table(loaded.get_add_actions(flatten=True))
    if not files.num_rows:
        return None
    lows = files.column("min.seq").to_pylist() if "min.seq" in files.column_names else [None]
    return 1 if None in lows else min(lows)


def check_gaps(topic: str, gaps: list[tuple[int, int, str]], first: int, last: int) -> None:
    """RecordsLost for the first of the gaps that a table notes which lies behind its record `first` and not behind
    `last`. Rot is told before the first record, too: it is not where a topic begins."""
    for low, high, reason in gaps:
        if low <= last and (low > first or reason == "corrupt"):
            high = min(high, last)
            raise RecordsLost(
                f"records {low} to {high} of topic {topic!r} were lost ({reason}) before they were exported: read on "
                "with gap_policy='skip'; `topics pipeline status` shows all gaps of the table",
                topic=topic,
                gap_from=low,
                gap_to=high,
                reason=reason,
            )


def check_instance(options: Options, topic: str, instance: str, mark: int = 1) -> Head:
    """Where the server's topic stands; InvalidRequest if it is not the one of the table, which ends before `mark`."""
    heads = open_origin(replace(options, words=ARGUMENTS)).heads({topic: 1})
    if topic not in heads:
        raise InvalidRequest(f"the server at {options.url} has no topic {topic!r}, whose history the table holds")
    if heads[topic].id != instance:
        raise InvalidRequest(f"the table holds another instance of topic {topic!r} than the server at {options.url}")
    if mark > heads[topic].head_seq + 1:  # what follows the head would be read as what follows the table
        raise InvalidRequest(
            f"the table ends at seq {mark - 1} but topic {topic!r} on the server at {options.url} at "
            f"{heads[topic].head_seq}: the server's data directory is older than the table (restored from a backup?)"
        )
    return heads[topic]
