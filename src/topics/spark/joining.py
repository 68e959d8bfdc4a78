"""Small files of a history table become large ones: which, and how.

Files that follow each other in the table's seqs are read in that order and written as one; nothing else is touched. A
file that outweighs all small ones behind it is left alone until they have grown, so that a record is written again
only a few times (the logarithm of large by small) until it lies in a large file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from topics.spark.parts import COLUMNS, PartFile, Written

SMALL_BYTES: Final = 64 << 20
FILE_BYTES: Final = 192 << 20
JOIN_FILES: Final = 16
"""So many small files are worth a rewrite."""
_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TableFile:
    path: str
    """Below the table's folder."""
    size: int
    low: int | None
    """The first seq; None: the table does not tell, so the file is left alone."""
    high: int | None


def choose(files: Sequence[TableFile], least: int = JOIN_FILES) -> list[list[TableFile]]:
    """Which files become one, each list in the order of their seqs; nothing while fewer than `least` would."""
    runs: list[list[TableFile]] = [[]]
    reach = 0
    for file in sorted(files, key=lambda one: one.low or 0):
        if file.low is None or file.high is None or file.low <= reach or file.size >= SMALL_BYTES:
            runs.append([])  # what follows it does not follow what goes before it
            reach = max(reach, file.high or 0)
            continue
        reach = file.high
        if sum(one.size for one in runs[-1]) + file.size > FILE_BYTES:
            runs.append([])
        runs[-1].append(file)
    chosen = [run for run in map(_worth, runs) if len(run) > 1]
    return chosen if sum(map(len, chosen)) >= least else []


def _worth(run: list[TableFile]) -> list[TableFile]:
    rest = sum(file.size for file in run)
    for at, file in enumerate(run):
        rest -= file.size
        if file.size <= rest:
            return run[at:]
    return []


def join(folder: str, files: Sequence[TableFile], mark: str = "") -> Written:
    """One file with the rows of these, in their order."""
    paths = [os.path.join(folder, file.path) for file in files]
    schema = _schema(map(pq.read_schema, paths))
    assert files[0].low is not None
    file = PartFile(folder, files[0].low, schema, of=mark)
    try:
        for path in paths:  # one open at a time: there may be more of them than a process may open
            with pq.ParquetFile(path) as source:
                for group in range(source.num_row_groups):  # one at a time: a batch over several may be any size
                    for batch in source.iter_batches(_ROWS, row_groups=[group], columns=schema.names):
                        file.add(_fitted(batch, schema))
    except BaseException:
        file.discard()
        raise
    return file.finish()


def _schema(found: Iterable[pa.Schema]) -> pa.Schema:
    """Our columns as we write them, and every typed one that a file has; a table may have got one later."""
    fields = {field.name: field for field in COLUMNS}
    for schema in found:
        for field in schema:
            fields.setdefault(field.name, pa.field(field.name, field.type))
    return pa.schema(fields.values())


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With nulls in columns that its file lacks."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)
