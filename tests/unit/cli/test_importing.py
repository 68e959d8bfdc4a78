"""Taking over a directory of the Rust program from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import topics as package
from tests.unit.cli.conftest import Command
from tests.unit.storage.rust.directory import RustDirectory, Topic, append, create, record, snapshot
from topics.host.fs import OsFs
from topics.model.record import Record


@pytest.fixture
def made(tmp_path: Path) -> RustDirectory:
    directory = RustDirectory(OsFs(), str(tmp_path / "data"))
    directory.wal(create(2, "b", durable=True), append(2, 1, "x"), append(2, 3, "y"))
    directory.snapshot(snapshot([Topic("a", 1, 2, [record(1, 1), record(2, None)], config={"durable": True})]))
    return directory


def files(directory: RustDirectory) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(directory.root).rglob("*") if path.is_file()}


def test_a_check_says_what_an_import_would_find_and_changes_nothing(topics: Command, made: RustDirectory) -> None:
    before = files(made)
    ran = topics("import", "--data-dir", made.root, "--check", "--json")
    assert ran.status == 0
    (report,) = ran.lines
    assert (report["topics"], report["records"], report["counts"]) == (2, 4, {"hole": 1})
    assert report["findings"][0]["kind"] == "hole"
    after = files(made)
    after.pop(f"{made.root}/.topics.lock")
    assert after == before


def test_an_import_leaves_a_store_that_opens(topics: Command, made: RustDirectory) -> None:
    ran = topics("import", "--data-dir", made.root)
    assert ran.status == 0
    assert "import, hole (1): " in ran.err
    assert "records" in ran.out
    with package.open(made.root, wal_shards=1) as log:
        assert [item.seq for item in log.read("a") if isinstance(item, Record)] == [1, 2]
        assert log.info("b").head_seq == 3
        log.append("b", [{"data": "after"}])
    again = topics("import", "--data-dir", made.root)
    assert again.status == 1
    assert "nothing to import" in again.err


def test_damage_is_refused_unless_salvage_is_asked_for(topics: Command, made: RustDirectory) -> None:
    path = Path(made.root) / "wal" / "wal-0000000000000001.log"
    data = bytearray(path.read_bytes())
    data[len(create(2, "b", durable=True)) + 40] ^= 1
    path.write_bytes(data)
    refused = topics("import", "--data-dir", made.root)
    assert refused.status == 4
    assert "--salvage" in refused.err
    assert "is damaged at byte" in refused.err
    ran = topics("import", "--data-dir", made.root, "--salvage")
    assert ran.status == 0
    assert "set aside: quarantine/rust-wal-wal-0000000000000001.log" in ran.err


def test_opening_a_directory_takes_it_over(made: RustDirectory) -> None:
    with package.open(made.root) as log:
        assert any("was imported" in line for line in log.recovery_report)
        assert [item.raw for item in log.read("a") if isinstance(item, Record)] == [b"1", b"null"]
