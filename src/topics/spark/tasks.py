"""The tasks of a round: Spark runs them, and what they died of is told in one line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from topics.model.errors import StorageError, Unreachable
from topics.spark.packing import pack
from topics.spark.parts import Writer, Written
from topics.spark.places import Span
from topics.spark.session import is_running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_SOURCE_BYTES: Final = 768 << 20
"""Stored bytes for one task: JSON shrinks to a third of it or less as a rule, and then they become one file."""
SPREAD_BYTES: Final = 32 << 20
"""Less than this is not worth a task of its own."""
_LOST: Final = re.compile(r"^topics\.model\.errors\.Unreachable: ", re.MULTILINE)
"""A task's server did not answer, and will not answer whoever asks for the next topic."""


def write_files(spark: SparkSession | None, writer: Writer, spans: list[Span]) -> list[Written]:
    partitions = pack(spans, os.cpu_count() or 1, bytes_max=FILE_SOURCE_BYTES, bytes_min=SPREAD_BYTES)
    if not partitions or spark is None:
        return []
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        tasks = spark.sparkContext.parallelize(partitions, len(partitions))
        found: list[Written] = tasks.flatMap(writer.write).collect()
    except (PySparkException, Py4JError, OSError) as error:
        if not is_running(spark):
            raise StorageError(
                f"Spark ended while the files of {writer.folder} were written, perhaps for want of memory: the next "
                "round starts another; if that one ends, too, see what Java and the kernel's log (dmesg) say, and give "
                "this machine more memory, or --master another one"
            ) from error
        why = f"the files of {writer.folder} were not written: {last_words(str(error))}"
        raise (Unreachable if _LOST.search(str(error)) else StorageError)(why) from error
    return found


def last_words(text: str) -> str:
    """What a task died of, without its way through Python and Java: an error of ours, else Python's own, such as that
    the disk is full, else the first line."""
    ours = re.findall(r"^topics\.model\.errors\.\w+: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    _, told, way = text.rpartition("Traceback (most recent call last)")
    said = re.search(r"^(?:\w+\.)*[A-Z]\w*: .+$", way, re.MULTILINE) if told else None
    return said[0] if said is not None else text.strip().partition("\n")[0]
