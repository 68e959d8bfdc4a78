from __future__ import annotations

import pytest

from topics.format.segment import ENTRY
from topics.storage.tail import ENTRY_SIZE, RamBlock, Tail


def entries(count: int, offset: int = 0) -> bytes:
    return b"".join(ENTRY.pack(offset + 10 * n, 10, 7, 0, b"\1\0\0") for n in range(count))


def offsets(tail: Tail, first: int, end: int) -> list[int]:
    found = []
    for chunk, low, high in tail.between(first, end):
        at = (low - chunk.first_seq) * ENTRY_SIZE
        view = memoryview(chunk.buffer)[at : at + (high - low) * ENTRY_SIZE]
        found += [entry[0] for entry in ENTRY.iter_unpack(view)]
    return found


def test_entries_of_consecutive_seqs_share_a_chunk_and_are_found() -> None:
    tail, block = Tail(), RamBlock(1000)
    chunk = tail.add(1, entries(3), 3)
    tail.settle(chunk, 1, 3, block, 0)
    chunk = tail.add(4, entries(2), 2)
    tail.settle(chunk, 4, 2, block, 500)
    assert len(tail.chunks) == 1
    assert offsets(tail, 1, 6) == [0, 10, 20, 500, 510]
    assert offsets(tail, 3, 5) == [20, 500]
    assert tail.find(5) is chunk
    assert tail.find(6) is None
    assert tail.find(0) is None


def test_a_jump_in_seqs_begins_a_chunk() -> None:
    tail = Tail()
    tail.add(1, entries(2), 2)
    tail.add(10, entries(2), 2)
    assert [(chunk.first_seq, chunk.count) for chunk in tail.chunks] == [(1, 2), (10, 2)]
    assert tail.find(5) is None
    assert len(offsets(tail, 1, 12)) == 4
    with pytest.raises(AssertionError):
        tail.add(3, entries(1), 1)


def test_a_view_stays_valid_while_the_chunk_grows() -> None:
    tail = Tail()
    chunk = tail.add(1, entries(2), 2)
    view = memoryview(chunk.buffer)[: 2 * ENTRY_SIZE]
    before = bytes(view)
    for n in range(200):
        tail.add(3 + n, entries(1), 1)
    assert bytes(view) == before
    assert len(tail.chunks) == 1


def test_each_seq_knows_its_source() -> None:
    tail, one, other = Tail(), RamBlock(10), RamBlock(10)
    chunk = tail.add(1, entries(3), 3)
    tail.settle(chunk, 1, 3, one, 0)
    chunk = tail.add(4, entries(3), 3)
    tail.settle(chunk, 4, 3, other, 0)
    assert chunk.source_of(2) == (one, 4)
    assert chunk.source_of(4) == (other, 7)


def test_cutting_forgets_what_will_not_be_committed() -> None:
    tail, one, other = Tail(), RamBlock(10), RamBlock(10)
    chunk = tail.add(1, entries(3), 3)
    tail.settle(chunk, 1, 3, one, 0)
    chunk = tail.add(4, entries(3), 3)
    tail.settle(chunk, 4, 3, other, 0)
    tail.add(20, entries(1), 1)
    tail.cut_after(3)
    assert [(chunk.first_seq, chunk.end_seq) for chunk in tail.chunks] == [(1, 4)]
    chunk = tail.add(4, entries(1, 90), 1)
    tail.settle(chunk, 4, 1, one, 0)
    assert chunk.source_of(4) == (one, 5)
    assert offsets(tail, 4, 5) == [90]
    tail.cut_after(0)
    assert tail.chunks == []


def test_copied_chunks_go_and_ram_stays() -> None:
    tail = Tail()
    tail.add(1, entries(2), 2)
    tail.add(3, entries(2), 2, ram=True)
    tail.add(5, entries(2), 2)
    tail.drop_through(6)
    assert [(chunk.first_seq, chunk.ram) for chunk in tail.chunks] == [(3, True)]
    assert list(tail.ram_ranges()) == [(3, 4)]


def test_a_ram_block_gives_back_what_was_added() -> None:
    block = RamBlock(8)
    assert block.add(b"abc") == 0
    assert block.room(5)
    assert not block.room(6)
    assert block.add(b"def") == 3
    assert block.read_at(2, 3) == b"cde"
    assert block.read_at(5, 100) == b"f"
    assert bytes(block.map()[:6]) == b"abcdef"
