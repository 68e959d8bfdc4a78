from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.storage.dead import BLOCK, DeadSet

TOP = 3 * BLOCK
seqs = st.integers(1, TOP) | st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, TOP])
steps = st.lists(
    st.tuples(st.just("mark"), seqs, st.integers(0, 2 * BLOCK)) | st.tuples(st.just("floor"), seqs, st.just(0)),
    max_size=12,
)


class Plain:
    """The same as a plain set."""

    def __init__(self) -> None:
        self.floor = 0
        self.gone: set[int] = set()

    def __contains__(self, seq: int) -> bool:
        return seq <= self.floor or seq in self.gone


def play(actions: list[tuple[str, int, int]]) -> tuple[DeadSet, Plain]:
    dead, plain = DeadSet(), Plain()
    for what, seq, more in actions:
        if what == "mark":
            dead.mark(seq, seq + more)
            plain.gone.update(range(seq, seq + more + 1))
        else:
            dead.raise_floor(seq)
            plain.floor = max(plain.floor, seq)
    return dead, plain


@given(steps, st.lists(seqs, max_size=20))
def test_a_dead_set_holds_what_a_plain_set_holds(actions: list[tuple[str, int, int]], probes: list[int]) -> None:
    dead, plain = play(actions)
    assert dead.floor == plain.floor
    for seq in probes:
        assert (seq in dead) == (seq in plain)


some = st.tuples(seqs, st.integers(0, 40) | st.integers(0, 2 * BLOCK))


@given(steps, st.lists(some, max_size=20) | st.lists(some, min_size=40, max_size=80))
def test_marking_many_ranges_is_marking_each(actions: list[tuple[str, int, int]], more: list[tuple[int, int]]) -> None:
    together, single = play(actions)[0], play(actions)[0]
    ranges = [(first, first + extra) for first, extra in more]
    frozen = together.freeze()
    kept = list(frozen.ranges())
    together.mark_all(ranges)
    for first, last in ranges:
        single.mark(first, last)
    assert list(together.ranges()) == list(single.ranges())
    assert (together.version != frozen.version) == bool(ranges)
    assert list(frozen.ranges()) == kept, "a frozen copy keeps what it had"


@given(steps, seqs, st.integers(1, BLOCK + 50))
def test_masks_and_counts_agree_with_membership(actions: list[tuple[str, int, int]], first: int, count: int) -> None:
    dead, plain = play(actions)
    wanted = [seq in plain for seq in range(first, first + count)]
    mask = dead.mask(first, count)
    assert (mask is None) == (not any(wanted))
    if mask is not None:
        assert [bool(byte) for byte in mask] == wanted
    assert dead.count(first, first + count - 1) == sum(wanted)


@given(steps, seqs, st.integers(0, 2 * BLOCK))
def test_next_live_is_the_first_that_is_not_gone(actions: list[tuple[str, int, int]], seq: int, more: int) -> None:
    dead, plain = play(actions)
    end = seq + more
    start = max(seq, plain.floor + 1)
    wanted = next((at for at in range(start, end) if at not in plain), end)
    assert dead.next_live(seq, end) == wanted


@given(steps)
def test_ranges_are_the_runs_above_the_floor(actions: list[tuple[str, int, int]]) -> None:
    dead, plain = play(actions)
    listed: list[int] = []
    last = 0
    for first, end in dead.ranges():
        assert first > last + 1 or not last, "runs are apart and ascending"
        listed.extend(range(first, end + 1))
        last = end
    assert set(listed) == {seq for seq in plain.gone if seq > plain.floor}


@given(steps, steps)
def test_a_frozen_copy_does_not_change_with_the_live_set(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]]
) -> None:
    dead, plain = play(before)
    frozen = dead.freeze()
    for what, seq, more in after:
        if what == "mark":
            dead.mark(seq, seq + more)
        else:
            dead.raise_floor(seq)
    assert frozen.floor == plain.floor
    assert list(frozen.ranges()) == list(play(before)[0].ranges())


def test_a_frozen_copy_may_be_written_to_and_leaves_the_live_set() -> None:
    dead = DeadSet()
    dead.mark(5, 6)
    frozen = dead.freeze()
    frozen.mark(7, 7)
    assert 7 not in dead
    assert 7 in frozen
    dead.mark(8, 8)
    assert 8 not in frozen


def test_every_change_raises_the_version() -> None:
    dead = DeadSet()
    dead.mark(1, 1)
    first = dead.version
    dead.raise_floor(3)
    assert dead.version > first
    again = dead.version
    dead.raise_floor(2)
    assert dead.version == again
    assert dead.freeze().version == again


@given(
    floor=st.integers(0, 20),
    dead=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 40)), max_size=8),
    first=st.integers(1, 9000),
    count=st.integers(1, 600),
)
def test_a_quick_look_never_misses_what_is_gone(
    floor: int, dead: list[tuple[int, int]], first: int, count: int
) -> None:
    found = DeadSet(floor)
    for start, more in dead:
        found.mark(start, start + more)
    last = first + count - 1
    gone = any(seq in found for seq in range(first, last + 1))
    assert found.has_any(first, last) or not gone
    if first > floor and first // BLOCK == last // BLOCK:
        assert found.has_any(first, last) == gone
