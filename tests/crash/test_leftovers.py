"""What a checkpoint that failed leaves on the disk: nothing that nobody refers to, and all that somebody does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest

from tests.crash.life import ROOT, Life, listed
from tests.crash.sweeps import ERRORS
from topics.host.fs import read_file
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs

DIRECTORY = f"{ROOT}/topics/00000001"
_PAIR = re.compile(r"seg-(\d+)\.(data|idx|tags|keys)")


def pairs(disk: FakeDisk) -> dict[int, set[str]]:
    """Their parts, by first seq."""
    found: dict[int, set[str]] = {}
    for name in disk.list(DIRECTORY) if disk.exists(DIRECTORY) else []:
        match = _PAIR.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
    return found


def named(disk: FakeDisk) -> set[int]:
    path = f"{DIRECTORY}/MANIFEST"
    return listed(read_file(disk, path)) if disk.exists(path) else set()


def start(large: bool) -> tuple[Life, FaultFs]:
    """A sealed pair and an active one, and six pairs to come. `large`: they grow block by block."""
    life = Life(segment_max_events=3, wal_file_bytes=1 << 16, segment_max_bytes=200 if large else 1 << 20)
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 4)
    assert life.store.checkpoint()
    life.append("a", 18, "x")
    life.kill()
    return life, life.open_faulty()


def troubles(large: bool) -> Iterator[tuple[Fault, Life, FaultFs, bool]]:
    """Every call on files of topics that a checkpoint makes fails once, and from then on."""
    for call, errors in ERRORS.items():
        for error in errors:
            for nth in count(1):
                for forever in (False, True):
                    life, fs = start(large)
                    fault = Fault(call, nth, error, forever=forever, path="/topics/")
                    fs.add(fault)
                    done = life.store.checkpoint()
                    if fs.fired:
                        yield fault, life, fs, done
                if not fs.fired:
                    break


@pytest.mark.parametrize("large", [False, True], ids=["made at once", "grown"])
def test_a_checkpoint_that_fails_leaves_no_pair_that_nobody_names(large: bool) -> None:
    failed = 0
    for fault, life, fs, done in troubles(large):
        failed += not done
        there, wanted = pairs(life.disk), named(life.disk)
        assert all({"data", "idx"} <= there.get(first, set()) for first in wanted), fault
        assert wanted >= {segment.first_seq for segment in life.store.topics["a"].segments}, fault
        # Whoever can neither read the list nor remove a file leaves all as it is.
        if fault.call not in ("remove", "read", "list") and not (fault.call == "open" and fault.forever):
            assert set(there) == wanted, fault
        fs.heal()
        assert life.seqs("a") == list(range(1, 23)), fault
        life.delete("a", before_seq=12)  # the next pairs begin elsewhere
        assert life.store.checkpoint(), fault
        assert named(life.disk) == {segment.first_seq for segment in life.store.topics["a"].segments}
        life.power_cut()
        life.reopen()
        assert set(pairs(life.disk)) == named(life.disk), fault
    assert failed > 50


@pytest.mark.parametrize("call", ["write", "sync"])
def test_deletes_make_room_on_a_disk_that_was_too_full_for_a_checkpoint(call: str) -> None:
    life, fs = start(large=False)
    fs.add(Fault(call, 1, "ENOSPC", forever=True, path="seg-0000000000000016.data"))
    assert not life.store.checkpoint()
    assert set(pairs(life.disk)) == {1, 4}
    fs.heal()
    life.delete("a", before_seq=12)
    assert life.store.checkpoint()
    assert set(pairs(life.disk)) == named(life.disk)


def test_pairs_of_a_list_that_may_count_stay() -> None:
    """The list has its name and that name is not durable: a power cut may leave the one or the other."""
    life, fs = start(large=False)
    fs.add(Fault("sync_dir", 3, path=DIRECTORY))
    assert not life.store.checkpoint()
    assert len(named(life.disk)) > 6
    assert set(pairs(life.disk)) == named(life.disk)
    fs.heal()
    life.delete("a", before_seq=12)
    fs.add(Fault("write", 3, "ENOSPC", forever=True, path=".data"))
    assert not life.store.checkpoint()
    assert set(pairs(life.disk)) >= named(life.disk)
    for mode in ("all_lost", "all_kept"):
        again = life.clone()
        again.disk.power_cut(mode=mode)
        again.power_cut()
        again.reopen()
