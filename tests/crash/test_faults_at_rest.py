"""Faults of files at rest: rot, misdirection, rollback, loss, foreign content."""

from __future__ import annotations

from functools import cache

import pytest

from tests.crash.life import ROOT, Life
from tests.crash.rot import Content, verdict
from topics.format.frame import encode_frame
from topics.model.errors import CorruptFile, StorageError, UnknownVersion

PARTS = ("meta", "wal", "topics")


@cache
def small_store(clean: bool) -> tuple[Life, Content]:
    """Sealed, active and WAL records of two classes, tagged and deleted ones among them."""
    life = Life(segment_max_events=4, wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    life.create("b")
    life.append("a", 3, "eu:1")
    life.append("a", 3, "us:1")
    life.append("b", 2)
    life.delete("a", tag="us:1")
    life.store.checkpoint()
    life.append("a", 2, "eu:2")
    life.append("b", 3, "x")
    life.store.checkpoint()
    life.append("a", 1)
    life.append("b", 1)
    life.sync()
    life.append("a", 1)
    whole = Content.of(life)
    if clean:
        life.close()
    life.kill()
    return life, whole


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_flipped_byte_is_never_served_and_never_shortens_a_topic(clean: bool, part: str) -> None:
    """F-SEG-CRC-CORRUPT-DATA, F-WAL-CRC-FLIP-MIDLOG, F-SNAP-CRC-CORRUPT: one flip in every byte of every file.

    The reference drops all WAL frames behind a flip; here a flip below anything proven refuses. After a kill the very
    last batch is proven by nothing that follows it, so a flip there cannot be told from a torn write (section 15).
    """
    life, whole = small_store(clean)
    last = max(whole.records["a"])
    may_lose = frozenset() if clean else frozenset({("a", last)})
    tried = 0
    for path in life.disk.files():
        if not path.startswith(f"{ROOT}/{part}/"):
            continue
        for offset in range(len(life.disk.read(path))):
            copy = life.clone()
            copy.disk.corrupt(path, offset, 1 << offset % 8)
            try:
                verdict(copy, whole, may_lose)
            except Exception as error:
                pytest.fail(f"{path} byte {offset}: {type(error).__name__}: {error}")
            tried += 1
    assert tried > 300


def _wal_files(life: Life) -> list[str]:
    return [path for path in life.disk.files() if path.endswith(".log")]


def _put(life: Life, path: str, data: bytes) -> None:
    """Replace a file's bytes behind the store's back, durably."""
    file = life.disk.open(path, write=True, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.sync()
    life.disk.sync_dir(path.rpartition("/")[0])


def _three_wal_files() -> Life:
    """Nothing checkpointed: every record lives in one of several WAL files."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    for _ in range(14):
        life.append("a", 1)
    life.kill()
    assert len(_wal_files(life)) == 3
    return life


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_wal_file_refuses_to_start(which: int) -> None:
    """F-REC-EIO-MIDLOG, lost file: the chain of first frames tells of a lower one, CURRENT of the highest."""
    life = _three_wal_files()
    path = _wal_files(life)[which]
    life.disk.remove(path)
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert caught.value.path == path
    assert life.disk.files(), "nothing was deleted"


def test_wal_files_that_changed_places_refuse_to_start() -> None:
    """3.3 misdirected write: each file states its own number in its first frame."""
    life = _three_wal_files()
    first, second = _wal_files(life)[1:]
    one, other = life.disk.read(first), life.disk.read(second)
    _put(life, first, other)
    _put(life, second, one)
    with pytest.raises(CorruptFile):
        life.open()
    assert life.disk.read(first) == other, "the refused start changed nothing"


def test_the_highest_wal_file_under_another_number_is_not_taken_for_empty() -> None:
    """3.3 misdirected write: cutting it would destroy acked records."""
    life = _three_wal_files()
    highest = _wal_files(life)[-1]
    data = life.disk.read(highest)
    life.disk.rename(highest, f"{ROOT}/wal/wal-0000000000000009.log")
    with pytest.raises(CorruptFile):
        life.open()
    assert life.disk.read(f"{ROOT}/wal/wal-0000000000000009.log") == data


def test_a_wal_file_rolled_back_to_an_older_image_refuses_when_another_proves_it() -> None:
    """3.3 rollback of one file: the next file's first frame states the length that was valid."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 1)
    old = life.disk.read(f"{ROOT}/wal/wal-0000000000000001.log")
    for _ in range(8):
        life.append("a", 1)
    life.kill()
    _put(life, f"{ROOT}/wal/wal-0000000000000001.log", old)
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert "wal-0000000000000001.log" in caught.value.path


def test_a_snapshot_rolled_back_to_an_older_image_is_skipped() -> None:
    """3.3 rollback of one file: a snapshot states its own number, and the older one with its WAL is whole."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    life.store.checkpoint()
    old = life.disk.read(f"{ROOT}/meta/snapshot-0000000000000002.bin")
    life.append("a", 2)
    life.store.checkpoint()
    life.append("a", 1)
    life.kill()
    _put(life, f"{ROOT}/meta/snapshot-0000000000000003.bin", old)
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4, 5]
    assert any("snapshot-0000000000000003" in line for line in life.store.report)


def test_older_snapshots_without_their_wal_refuse_to_start() -> None:
    """3.3 rollback: both kept snapshots replaced by ones whose WAL was let go long ago."""
    life = Life(wal_file_bytes=1024, segment_max_events=100)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    life.store.checkpoint()
    old = {path: life.disk.read(path) for path in life.disk.files() if "snapshot" in path}
    for _ in range(6):
        for _ in range(6):
            life.append("a", 1)
        life.store.checkpoint()
    life.kill()
    for path in [path for path in life.disk.files() if "snapshot" in path]:
        life.disk.remove(path)
    for path, data in old.items():
        _put(life, path, data)
    with pytest.raises(CorruptFile):
        life.open()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST", "BOOT"])
def test_an_older_image_of_a_derived_file_changes_nothing(name: str) -> None:
    """3.3 rollback of one file: CURRENT, MANIFEST and BOOT are not the truth, only a help."""
    life = Life(wal_file_bytes=1024)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4)
    life.store.checkpoint()
    path = next(path for path in life.disk.files() if path.endswith(name))
    old = life.disk.read(path)
    for _ in range(3):
        life.append("a", 3)
        life.store.checkpoint()
    wanted = life.seqs("a")
    life.kill()
    _put(life, path, old)
    life.reopen()
    assert life.seqs("a") == wanted
    assert life.append("a", 1) == wanted[-1] + 1


def test_a_length_in_current_never_makes_a_file_shorter() -> None:
    """I8: CURRENT has no checksum. A length that is too small, yet on a frame's end, must not cut acked records."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 1)
    half = life.store.shards[0].file
    assert half is not None
    length = half.written
    life.append("a", 3)
    life.kill()
    _put(life, f"{ROOT}/wal/CURRENT", f"wal-0000000000000009.log\nsealed {half.name} {length}\n".encode())
    _put(life, f"{ROOT}/wal/wal-0000000000000009.log", b"")
    life.reopen()
    assert life.seqs("a") == [1, 2, 3, 4]


def test_swapped_segments_of_one_topic_are_not_served() -> None:
    """3.3 misdirected write: every frame carries its seq, and a reader asks for it."""
    life = Life(segment_max_events=2)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4)
    life.store.checkpoint()
    whole = Content.of(life)
    life.close()
    life.kill()
    one, other = (f"{ROOT}/topics/00000001/seg-000000000000000{n}.data" for n in (1, 3))
    first, second = life.disk.read(one), life.disk.read(other)
    _put(life, one, second)
    _put(life, other, first)
    life.open()
    assert life.seqs("a") == []
    assert [gap[2] for gap in life.gaps("a")] == ["corrupt"] * 4
    assert whole.records["a"].keys() == {1, 2, 3, 4}


def test_a_frame_of_another_topic_in_the_wal_is_not_served() -> None:
    """F-WAL-MISDIRECTED-FRAME: a WAL frame names its topic; one for an unknown topic is reported, never applied."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    file = life.store.shards[0].file
    assert file is not None
    stray = encode_frame(1, 77, b'{"d":1}', seq=1, ts=5)
    end = file.written
    life.kill()
    disk_file = life.disk.open(file.path, write=True)
    disk_file.write_at(end, [stray])
    disk_file.sync()
    life.reopen()
    assert life.seqs("a") == [1, 2]
    assert any("unknown topic 77" in line for line in life.store.report)


def test_a_frame_with_a_far_seq_refuses_to_start() -> None:
    """F-WAL-MISDIRECTED-FRAME: the reference skips it; an unannounced jump is corruption here (D-15)."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    file = life.store.shards[0].file
    assert file is not None
    end = file.written
    life.kill()
    disk_file = life.disk.open(file.path, write=True)
    disk_file.write_at(end, [encode_frame(1, 1, b'{"d":1}', seq=900, ts=5)])
    disk_file.sync()
    with pytest.raises(CorruptFile) as caught:
        life.open()
    assert (caught.value.path, caught.value.offset) == (file.path, end)


@pytest.mark.parametrize("kind", [12, 63, 70, 79, 200, 255])
def test_a_frame_of_an_unknown_kind_refuses_and_is_not_cut(kind: int) -> None:
    """3.3 unknown frame type: what a newer version wrote is never truncated as a torn tail."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 1)
    file = life.store.shards[0].file
    assert file is not None
    end = file.written
    life.kill()
    disk_file = life.disk.open(file.path, write=True)
    disk_file.write_at(end, [encode_frame(kind, 1, b"newer")])
    disk_file.sync()
    before = life.disk.read(file.path)
    for recovery in ("strict", "salvage"):
        with pytest.raises(StorageError) as caught:
            life.open(recovery=recovery)
        assert file.path in caught.value.message
        assert life.disk.read(file.path) == before


def test_an_unknown_format_version_refuses_and_changes_nothing() -> None:
    """3.3 upgrade, unknown version: the FORMAT of a newer program."""
    life, _ = small_store(True)
    life = life.clone()
    _put(life, f"{ROOT}/meta/FORMAT", b"topics-py 2\nabc\n")
    before = {path: life.disk.read(path) for path in life.disk.files() if not path.endswith(".lock")}
    with pytest.raises(UnknownVersion):
        life.open()
    assert {path: life.disk.read(path) for path in life.disk.files() if not path.endswith(".lock")} == before


@pytest.mark.parametrize("gone", ["FORMAT", "snapshot"])
def test_a_directory_without_its_identity_refuses_to_start_empty(gone: str) -> None:
    """3.2 g: FORMAT or every snapshot lost. The reference starts almost empty; here nothing is guessed (section 6)."""
    life, _ = small_store(True)
    life = life.clone()
    for path in [path for path in life.disk.files() if f"/meta/{gone}" in path]:
        life.disk.remove(path)
    with pytest.raises(StorageError):
        life.open()
    assert any(path.endswith(".data") for path in life.disk.files())


@pytest.mark.parametrize("wal", [True, False])
def test_a_reference_snapshot_of_another_version_is_refused_with_a_way_out_and_left_as_it_is(wal: bool) -> None:
    """Its snapshot alone holds every live payload, so it is no leftover to begin anew on."""
    life = Life()
    for path in (ROOT, f"{ROOT}/meta", f"{ROOT}/wal"):
        life.disk.mkdir(path)
    _put(life, f"{ROOT}/meta/snapshot-{7:016d}.bin", b"SNP1" + bytes(40))
    if wal:
        _put(life, f"{ROOT}/wal/wal-{1:016d}.log", encode_frame(2, 1, b"\1\0\0\0a\2\0\0\0{}"))
    before = {path: life.disk.read(path) for path in life.disk.files()}
    for recovery in ("strict", "salvage"):
        with pytest.raises(UnknownVersion, match="copy its topics over HTTP") as caught:
            life.open(recovery=recovery)
        assert ROOT in caught.value.message
    assert {path: life.disk.read(path) for path in life.disk.files() if not path.endswith(".lock")} == before


def test_a_lost_format_file_is_told_from_a_foreign_directory() -> None:
    life, _ = small_store(True)
    life = life.clone()
    life.disk.remove(f"{ROOT}/meta/FORMAT")
    with pytest.raises(UnknownVersion, match="that file is lost") as caught:
        life.open()
    assert f"{ROOT}/meta/FORMAT" in caught.value.message


def test_an_unlisted_wal_group_is_set_aside_and_not_replayed() -> None:
    """surviving_orphan_wal_files_do_not_regress_state: old groups that reappear go to quarantine, with a report."""
    life, whole = small_store(True)
    life = life.clone()
    life.disk.mkdir(f"{ROOT}/wal/shard-05")
    _put(life, f"{ROOT}/wal/shard-05/wal-0000000000000001.log", encode_frame(3, 1, b"\1\0\0\0a\0\0\0\0"))
    assert verdict(life, whole) == "served"
    assert any("shard-05" in line for line in life.store.report)
    assert any("/quarantine/" in path for path in life.disk.files())


def test_files_that_are_not_ours_are_left_alone() -> None:
    """3.3 name and path tricks: names that only look like ours are neither read nor removed."""
    life, whole = small_store(True)
    life = life.clone()
    strange = [
        f"{ROOT}/wal/wal-1.log",
        f"{ROOT}/wal/wal-000000000000000x.log",
        f"{ROOT}/meta/snapshot-9.bin",
        f"{ROOT}/topics/00000001/notes.txt",
        f"{ROOT}/notes",
    ]
    for path in strange:
        _put(life, path, b"mine")
    life.disk.mkdir(f"{ROOT}/topics/zzz")
    assert verdict(life, whole) == "served"
    life.store.checkpoint()
    assert all(life.disk.read(path) == b"mine" for path in strange)
