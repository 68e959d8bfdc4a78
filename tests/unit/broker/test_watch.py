"""Sessions, their cursors and ids, and what is told of a page; no store, no clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.broker.reading import Page, Tombstone
from topics.broker.watch import (
    SESSION_TTL_MS,
    Place,
    Session,
    Sessions,
    Told,
    View,
    decode_id,
    event_id,
    told_of,
)
from topics.model.errors import Throttled

names = st.text("abcXYZ019._:-", min_size=1, max_size=12)


def session(wid: str = "w", now_ms: int = 0, **cursors: int) -> Session:
    places = {name: Place(1, cursor, cursor) for name, cursor in cursors.items()}
    return Session(wid, b"", View(), 15_000, places, now_ms)


@given(st.dictionaries(names, st.integers(0, (1 << 64) - 1), max_size=6))
def test_id_carries_every_cursor_there_and_back(cursors: dict[str, int]) -> None:
    encoded = event_id(sorted(cursors.items()))
    assert b"=" not in encoded
    assert decode_id(encoded) == cursors


def test_id_is_the_one_of_the_contract() -> None:
    assert session(b=0, a=7).event_id() == b"eyJhIjo3LCJiIjowfQ"


@given(st.binary(max_size=60))
def test_any_bytes_as_id_are_read_or_ignored(text: bytes) -> None:
    for cursor in decode_id(text).values():
        assert 0 <= cursor < 1 << 64


@pytest.mark.parametrize("text", [b"eyJhIjo3LCJiIjowfQ==", b"", b"e30=", b"W10", b"eyJhIjotMX0", b"eyJhIjoiNyJ9"])
def test_ids_of_another_form_say_nothing(text: bytes) -> None:
    assert decode_id(text) == {}


def test_id_lowers_cursors_and_raises_them_only_to_what_was_made() -> None:
    mine = session(a=3, b=3)
    mine.places["a"].move(9)
    mine.resume(event_id([("a", 7), ("b", 50), ("zz", 1)]))
    assert (mine.places["a"].cursor, mine.places["b"].cursor) == (7, 3)
    mine.places["a"].give_back(4)
    mine.resume(event_id([("a", 8)]))
    assert mine.places["a"].cursor == 8, "what the reader says it has is not sent again"


def test_sessions_end_after_their_idle_time_and_not_while_streamed() -> None:
    sessions = Sessions(0)
    idle, used = session("idle", 0), session("used", 0)
    sessions.add(idle, 0)
    sessions.add(used, 0)
    stream = object()
    sessions.opened(used, stream)
    assert sessions.find("idle", SESSION_TTL_MS) is idle
    assert sessions.find("idle", SESSION_TTL_MS + 1) is None
    assert sessions.find("used", 10 * SESSION_TTL_MS) is used
    sessions.closed(used, stream, 10 * SESSION_TTL_MS)
    assert sessions.find("used", 11 * SESSION_TTL_MS) is used
    assert sessions.find("used", 11 * SESSION_TTL_MS + 1) is None
    assert len(sessions) == 0


def test_cap_counts_sessions_that_are_left() -> None:
    sessions = Sessions(2)
    sessions.add(session("a", 0), 0)
    sessions.add(session("b", 10), 10)
    with pytest.raises(Throttled) as full:
        sessions.add(session("c", 20), 20)
    assert full.value.facts == {"limit": "max_watch_sessions", "max": 2}
    late = SESSION_TTL_MS + 5
    sessions.add(session("c", late), late)
    assert (sessions.find("a", late), len(sessions)) == (None, 2)


def page(count: int = 0, cursor: int = 5, head: int = 5, gap: Tombstone | None = None) -> Page:
    return Page("a", head, 1, cursor, gap, [b"x"] if count else [], count)


CAP = Tombstone(1, 3, "cap", 3, 4, 5)


@pytest.mark.parametrize(
    ("read", "said", "frames"),
    [
        (page(2), False, [Told("record", 5), Told("caught-up", 5)]),
        (page(2), True, [Told("record", 5), Told("caught-up", 5)]),
        (page(2, cursor=4), True, [Told("record", 4)]),
        (page(), False, [Told("caught-up", 5)]),
        (page(), True, []),
        (page(cursor=4), False, []),
        (page(2, gap=CAP), True, [Told("tombstone", 3), Told("record", 5), Told("caught-up", 5)]),
        (page(gap=CAP), True, [Told("tombstone", 3), Told("caught-up", 5)]),
        (page(2, gap=Tombstone(1, 5, "recreated", 5, 1, 5)), True,
         [Told("tombstone", 0), Told("record", 5), Told("caught-up", 5)]),
    ],
)  # fmt: skip
def test_frames_of_a_page_are_these(read: Page, said: bool, frames: list[Told]) -> None:
    assert told_of(read, said) == frames


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_or_repeated_whatever_a_reader_and_its_connections_do(seed: int) -> None:
    """Frames are made, some are handed over, some of those are seen; connections break; the reader comes again with
    the id it saw last, or without any when it has seen all that was handed over."""
    rng = random.Random(seed)
    place, head = Place(1, 0, 0), 0
    seen: list[int] = []
    while head < 200:
        waiting: list[tuple[int, int]] = []
        """Made on this stream and not handed over: cursor before and behind."""
        handed: list[tuple[int, int]] = []
        for _ in range(rng.randrange(1, 12)):
            head += rng.randrange(4)
            if rng.random() < 0.7 and place.cursor < head:
                behind = rng.randrange(place.cursor + 1, head + 1)
                waiting.append((place.cursor, behind))
                place.move(behind)
            elif waiting and rng.random() < 0.8:
                handed.append(waiting.pop(0))
        for before, _ in reversed(waiting):
            place.give_back(before)
        taken = handed[: rng.randrange(len(handed) + 1)]
        for before, behind in taken:
            seen += range(before + 1, behind + 1)
        if taken != handed or rng.random() < 0.5:
            place.resume(seen[-1] if seen else 0)
    assert seen == list(range(1, len(seen) + 1))
