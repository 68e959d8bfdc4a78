"""Printing files of a data directory, whole and damaged."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import topics as package
from tests.unit.cli.conftest import Command
from topics.cli.dumping import BODIES, kind_of
from topics.format import frame
from topics.format.ops import prepare, stage_frames
from topics.storage.partfile import head_for


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed data directory with sealed segments, deletes, keys and idempotency keys in it."""
    path = tmp_path_factory.mktemp("dump") / "data"
    with package.open(path, wal_shards=1, segment_max_events=3) as log:
        log.create("orders", durability="fsync")
        for number in range(4):
            records = [
                {"data": {"n": number}, "tag": "eu"},
                {"data": "x" * 500, "key": "k", "node": "n", "meta": {"a": 1}},
            ]
            log.append("orders", records, idempotency_key=f"i{number}")
        log.checkpoint()
        log.delete("orders", before_seq=2)
        log.append("orders", [{"data": None}])
    return path


def file_of(data: Path, pattern: str) -> Path:
    return sorted(data.rglob(pattern))[0]


def damaged(tmp_path: Path, source: Path, at: int, cut: int | None = None) -> str:
    """A copy with one byte flipped at `at`, or cut off there."""
    content = bytearray(source.read_bytes())
    if cut is not None:
        del content[cut:]
    else:
        content[at] ^= 0xFF
    copy = tmp_path / source.name
    copy.write_bytes(content)
    return str(copy)


def test_wal_file_is_printed_frame_by_frame(topics: Command, data: Path) -> None:
    ran = topics("dump", str(file_of(data, "wal-*.log")), "--json")
    *frames, last = ran.lines
    assert ran.status == 0
    assert last["stop"]["reason"] == "zeros"
    assert frames[0]["what"] == "checkpoint_mark"
    assert frames[0]["of"] == "FileMark"
    (made,) = [one for one in frames if one["what"] == "topic_create"]
    assert made["body"]["name"] == "orders"
    assert made["body"]["config_json"]["durability"] == "fsync"
    records = [one for one in frames if one["what"] == "append"]
    assert [one["seq"] for one in records] == list(range(1, 10))
    assert (records[0]["tag"], records[0]["data"]) == ("eu", '{"n":0}')
    assert (records[1]["key"], records[1]["node"], records[1]["meta"]) == ("k", "n", '{"a":1}')
    assert records[1]["data"].endswith("(502 bytes)")
    for one, after in itertools.pairwise(frames):
        assert one["offset"] + one["length"] == after["offset"]


def test_full_payloads_and_limits_are_asked_for(topics: Command, data: Path) -> None:
    file = str(file_of(data, "seg-*.data"))
    whole = topics("dump", file, "--json", "--full").lines
    assert any(len(one.get("data", "")) == 502 for one in whole)
    first, stop = topics("dump", file, "--json", "--limit", "1").lines
    assert first["seq"] == 1
    assert stop["stop"]["reason"] == "limit"
    rest = topics("dump", file, "--json", "--offset", str(stop["stop"]["offset"])).lines
    assert rest[0]["seq"] == 2


def test_segment_parts_are_printed(topics: Command, data: Path) -> None:
    records = topics("dump", str(file_of(data, "seg-*.data")), "--json").lines[:-1]
    entries = topics("dump", str(file_of(data, "seg-*.idx")), "--json").lines[:-1]
    assert [(one["offset"], one["length"]) for one in records] == [(one["at"], one["length"]) for one in entries]
    assert records[0]["deleted"] is True
    assert records[1]["deleted"] is None
    (tag, end) = topics("dump", str(file_of(data, "seg-*.tags")), "--json").lines
    assert (tag["tag"], tag["records"], end["stop"]["reason"]) == ("eu", 2, "end")
    (key, end) = topics("dump", str(file_of(data, "seg-*.keys")), "--json").lines
    assert (key["key"], key["records"], end["stop"]["reason"]) == ("k", 1, "end")


def test_staged_part_is_printed(topics: Command, tmp_path: Path) -> None:
    prepared = prepare([{"data": 1, "tag": "eu"}, {"data": 2}])
    frames = stage_frames(prepared.frames, prepared.entries, 2)
    path = tmp_path / "0000000000000001.part"
    path.write_bytes(head_for("app@1", "p0", 2, frames).encode() + frames)
    head, first, second, end = topics("dump", str(path), "--json").lines
    assert (head["what"], head["txn"], head["part"], head["count"]) == ("part", "app@1", "p0", 2)
    assert (first["seq"], first["tag"], second["seq"], end["stop"]["reason"]) == (0, "eu", 0, "end")
    assert "DAMAGE" in topics("dump", damaged(tmp_path, path, 0, cut=10)).out


def test_metadata_files_are_printed(topics: Command, data: Path) -> None:
    manifest = topics("dump", str(file_of(data, "MANIFEST")), "--json").lines
    assert manifest[0]["topic_id"] == 1
    assert [one["first"] for one in manifest if one.get("what") == "segment"] == [1, 4, 7]
    snapshot = topics("dump", str(sorted(data.rglob("snapshot-*.bin"))[-1]), "--json").lines
    assert snapshot[0]["clean"] is True
    assert snapshot[1]["name"] == "orders"
    current = topics("dump", str(file_of(data, "CURRENT")), "--json").lines
    assert current[0] == {"what": "active", "file": file_of(data, "wal-*.log").name}
    assert "topics-py 1" in topics("dump", str(file_of(data, "FORMAT"))).out


@pytest.mark.parametrize(
    "pattern", ["wal-*.log", "seg-*.data", "seg-*.idx", "seg-*.tags", "seg-*.keys", "MANIFEST", "CURRENT"]
)
def test_every_file_is_printed_for_people(topics: Command, data: Path, pattern: str) -> None:
    ran = topics("dump", str(file_of(data, pattern)))
    assert ran.status == 0
    assert "end: " in ran.out.splitlines()[-1]


def test_damage_in_a_wal_file_is_named_and_can_be_passed(topics: Command, data: Path, tmp_path: Path) -> None:
    source = file_of(data, "wal-*.log")
    frames = topics("dump", str(source), "--json").lines[:-1]
    broken = damaged(tmp_path, source, frames[4]["offset"] + 40)
    ran = topics("dump", broken, "--json")
    assert ran.status == 4
    assert len(ran.lines) == 5
    stop = ran.lines[-1]["stop"]
    assert (stop["offset"], stop["reason"]) == (frames[4]["offset"], "damage")
    assert "checksum" in stop["why"]
    assert str(frames[5]["offset"]) in stop["why"]
    past = topics("dump", broken, "--json", "--past-damage")
    assert past.status == 4
    assert len([one for one in past.lines if "stop" not in one]) == len(frames) - 1


def test_damage_in_a_segment_is_named_and_can_be_passed(topics: Command, data: Path, tmp_path: Path) -> None:
    source = file_of(data, "seg-*.data")
    frames = topics("dump", str(source), "--json").lines[:-1]
    assert len(frames) == 3
    for at in (0, 4, 26, 40):  # its length, its flags, the length of its data, its data
        broken = damaged(tmp_path, source, frames[1]["offset"] + at)
        ran = topics("dump", broken, "--json")
        stop = ran.lines[-1]["stop"]
        assert (ran.status, len(ran.lines), stop["reason"]) == (4, 2, "damage")
        assert f"the next whole frame begins at byte {frames[2]['offset']}" in stop["why"]
        past = topics("dump", broken, "--json", "--past-damage")
        assert past.status == 4
        assert [one for one in past.lines if "stop" not in one] == [frames[0], frames[2]]
    last = topics("dump", damaged(tmp_path, source, frames[2]["offset"] + 26), "--json", "--past-damage")
    assert "no whole frame follows" in last.lines[-1]["stop"]["why"]


def test_submission_without_its_end_is_named(topics: Command, data: Path, tmp_path: Path) -> None:
    source = file_of(data, "wal-*.log")
    frames = topics("dump", str(source), "--json").lines[:-1]
    open_end = next(one for one in frames if one["more"])
    ran = topics("dump", damaged(tmp_path, source, 0, cut=open_end["offset"] + open_end["length"]), "--json")
    assert ran.status == 4
    assert "not whole" in ran.lines[-1]["stop"]["why"]


@pytest.mark.parametrize("pattern", ["seg-*.data", "seg-*.tags", "seg-*.keys", "MANIFEST", "snapshot-*.bin", "CURRENT"])
def test_damage_in_other_files_is_named(topics: Command, data: Path, tmp_path: Path, pattern: str) -> None:
    source = file_of(data, pattern)
    for broken in (damaged(tmp_path, source, 10), damaged(tmp_path, source, 0, cut=source.stat().st_size - 1)):
        ran = topics("dump", broken, "--json")
        assert ran.status == 4
        assert ran.lines[-1]["stop"]["reason"] == "damage"
        assert ran.lines[-1]["stop"]["why"]


def test_index_with_half_an_entry_is_damaged(topics: Command, data: Path, tmp_path: Path) -> None:
    ran = topics("dump", damaged(tmp_path, file_of(data, "seg-*.idx"), 0, cut=25), "--json")
    assert ran.status == 4
    assert ran.lines[-1]["stop"]["offset"] == 20


def test_empty_and_foreign_files_are_no_trouble(topics: Command, tmp_path: Path) -> None:
    for name in ("wal-0000000000000001.log", "seg-0000000000000001.data", "seg-0000000000000001.idx", "notes"):
        (tmp_path / name).write_bytes(b"")
        assert topics("dump", str(tmp_path / name)).status == 0
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 4)
    assert topics("dump", str(tmp_path / "noise"), "--kind", "wal").status == 4
    assert topics("dump", str(tmp_path / "noise")).status == 0


def test_dump_of_what_is_no_file_is_refused(topics: Command, data: Path, tmp_path: Path) -> None:
    assert "directory" in topics("dump", str(data)).err
    assert "cannot be read" in topics("dump", str(tmp_path / "none")).err
    assert "--offset" in topics("dump", str(file_of(data, "CURRENT")), "--offset", "99999").err


def test_kind_is_told_by_the_name() -> None:
    names = {
        "wal/wal-0000000000000001.log": "wal",
        "seg-0000000000000001.data": "data",
        "a/seg-0000000000000001.idx": "idx",
        "seg-0000000000000001.tags": "tags",
        "seg-0000000000000001.keys": "keys",
        "MANIFEST": "manifest",
        "meta/snapshot-0000000000000001.bin": "snapshot",
        "CURRENT": "current",
        "FORMAT": "text",
    }
    assert {name: kind_of(name) for name in names} == names


def test_every_control_frame_has_a_reader() -> None:
    assert set(BODIES) == set(frame.Kind) - {frame.Kind.APPEND}
