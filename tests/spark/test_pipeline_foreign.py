"""Tables that somebody else's writer changed, or made: nothing of theirs is lost, and what cannot be done is told."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import topics
from tests.spark.in_process import in_process
from topics.cli.pipeline import status
from topics.model.errors import InvalidRequest
from topics.spark.joining import JOIN_FILES
from topics.spark.parts import parse_shreds
from topics.spark.pipeline import Exported, PipelineOptions, read_status, rebuild, run_round

VECTORS = {
    "protocol": {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"],
    }
}  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path) -> PipelineOptions:
    """A directory at rest with ten records of topic `orders`, and their table."""
    with topics.open(tmp_path / "data") as log:
        log.create("orders", durability="fsync")
    options = PipelineOptions(str(tmp_path / "tables"), path=str(tmp_path / "data"), topics="orders", tail=True)
    assert more(options, 10).rows == 10
    return options


def more(options: PipelineOptions, count: int) -> Exported:
    """So many records, and a round."""
    with topics.open(str(options.path)) as log:
        log.append("orders", [{"data": {"id": n, "extra": f"e{n}"}} for n in range(count)])
    (done,) = run_round(in_process, options)
    return done


def folder(options: PipelineOptions) -> Path:
    return Path(options.table) / "orders"


def write_version(options: PipelineOptions, *actions: dict[str, Any]) -> None:
    log = folder(options) / "_delta_log"
    version = len(list(log.glob("*.json")))
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def vector(rows: list[int]) -> dict[str, Any]:
    """A deletion vector inside the log: a roaring bitmap in base 85."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    told = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return {"storageType": "i", "pathOrInlineDv": z85(told), "sizeInBytes": len(told), "cardinality": len(rows)}


def z85(told: bytes) -> str:
    """As `base64.b85encode`, in other characters."""
    ours = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    theirs = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(told, pad=True).translate(bytes.maketrans(ours, theirs)).decode()


def test_rows_that_another_engine_deleted_by_a_vector_stay_deleted_and_nothing_is_there_twice(
    asked: PipelineOptions,
) -> None:
    (add,) = (
        json.loads(line)["add"]
        for line in (folder(asked) / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if '"add"' in line
    )
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    write_version(asked, VECTORS, {"remove": removed}, {"add": add | {"deletionVector": vector([0, 1, 2])}})
    for _ in range(JOIN_FILES):
        assert more(asked, 1).error is None
    seqs = polars.read_delta(str(folder(asked)))["seq"].sort().to_list()
    assert seqs == list(range(4, 11 + JOIN_FILES))


def test_table_whose_files_alone_do_not_tell_what_is_in_it_is_not_read_by_them(asked: PipelineOptions) -> None:
    write_version(asked, VECTORS)
    with pytest.raises(InvalidRequest, match=r"how .*orders is to be read \(deletionVectors\).*with a Delta reader"):
        topics.spark.table(in_process(), str(folder(asked)))


def test_feature_that_an_exporter_cannot_keep_is_named(asked: PipelineOptions) -> None:
    write_version(
        asked, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    )
    told = str(more(asked, 1).error)
    assert "was not changed (Unsupported table features required: [RowTracking])" in told
    assert "somebody else" not in told
    assert len(list(folder(asked).glob("*.parquet"))) == 1


def test_column_that_a_table_got_later_survives_joining(asked: PipelineOptions) -> None:
    DeltaTable(str(folder(asked))).alter.add_columns(Field("extra", PrimitiveType("string")))
    typed = replace(asked, shreds=parse_shreds("extra:string"))
    joined = [more(typed, 1).joined for _ in range(JOIN_FILES)]
    assert sum(joined) > 0
    rows = polars.read_delta(str(folder(asked))).sort("seq")
    assert rows["extra"].to_list() == [None] * 10 + ["e0"] * JOIN_FILES


@pytest.mark.parametrize("drop_lost", [False, True])
def test_table_of_something_else_is_told_and_never_replaced(asked: PipelineOptions, drop_lost: bool) -> None:
    with topics.open(str(asked.path)) as log:
        log.create("other", durability="fsync")
        log.append("other", [{"data": 1}])
    write_deltalake(str(Path(asked.table) / "other"), pa.table({"mine": [1, 2]}))
    options = replace(asked, topics="other", drop_lost=drop_lost)
    rounds: list[Callable[[], Exported]] = [
        lambda: next(run_round(in_process, options)),
        lambda: next(rebuild(in_process, options)),
    ]
    for do in rounds:
        assert "is a Delta table of something else: name another folder" in str(do().error)
    assert "is a Delta table of something else" in str(read_status(options)[0].problem)
    assert polars.read_delta(str(Path(asked.table) / "other"))["mine"].to_list() == [1, 2]


def test_table_of_another_store_is_called_so_and_never_replaced_by_a_wrong_address(
    asked: PipelineOptions, tmp_path: Path
) -> None:
    with topics.open(tmp_path / "staging") as log:
        log.create("orders", durability="fsync")
        log.append("orders", [{"data": 1}])
    wrong = replace(asked, path=str(tmp_path / "staging"))
    for choice in ("fail", "rebuild"):
        (done,) = run_round(in_process, replace(wrong, recreated=choice))
        assert "was written from topic 'orders' of another store (" in str(done.error)
    assert polars.read_delta(str(folder(asked))).height == 10
    (done,) = run_round(in_process, replace(wrong, recreated="new"))
    (kept,) = Path(asked.table).glob("orders.kept-*")
    assert (done.error, done.rows, polars.read_delta(str(kept)).height) == (None, 1, 10)


def test_notes_of_a_commit_that_make_no_sense_are_told_beside_the_table(asked: PipelineOptions) -> None:
    write_version(asked, {"commitInfo": {"timestamp": 1, "operation": "x", "topics.gaps": "{", "topics.restated": "x"}})
    assert "orders cannot be read (" in str(more(asked, 1).error)
    assert "orders cannot be read (" in str(read_status(asked)[0].problem)


def test_status_tells_below_the_numbers_what_is_wrong_in_lines_that_can_be_copied(
    asked: PipelineOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    table, path = asked.table, str(asked.path)
    assert status(table=table, path=path) == 0
    assert re.fullmatch(r"topic .* size .*\norders +10 +1 +[0-9.]+ kB +11 +10 +0 *\n", capsys.readouterr().out)
    Path(f"{folder(asked)}.old-1a2b3c4d").mkdir()
    Path(f"{folder(asked)}.gone-1a2b3c4d").mkdir()
    assert status(table=table, path=path) == 1
    told = capsys.readouterr().out.splitlines()[2:]
    assert told == [f"orders: {read_status(asked)[0].problem}"]
    assert status(table=f"{table}-elsewhere", path=path) == 0
    nothing = capsys.readouterr()
    assert re.search(r"\norders +– +– +– +1 +10 +10 *\n", nothing.out)
    assert f"no tables below {table}-elsewhere yet" in nothing.err
    assert status(table=table, path=path, json=True) == 1
    assert json.loads(capsys.readouterr().out) | {"problem": ""} == {
        "topic": "orders", "folder": str(folder(asked)), "exists": True, "rows": 10, "files": 1,
        "bytes": read_status(asked)[0].bytes, "next_seq": 11, "head_seq": 10, "lag": 0, "gaps": [], "problem": "",
    }  # fmt: skip
