from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.rules.schedule import AGING_TICK_MS, WAIT_MS_MAX, WEIGHTS, Schedule, Urgency, band_of

BANDS = {"a": 1000, "b": 600, "c": 300, "d": 10, "e": -300}


def test_bands_meet_at_the_named_priorities() -> None:
    assert [band_of(p) for p in (1000, 750, 749, 500, 499, 250, 249, 0, -1, -1000)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_topic_waits_in_the_ready_set_once() -> None:
    ready: Schedule[str] = Schedule()
    assert ready.mark("t", Urgency(), 0)
    assert not ready.mark("t", Urgency(manual=1000), 5)
    assert len(ready) == 1
    assert ready.take(9) == ("t", 9)
    assert ready.take(9) is None
    assert ready.mark("t", Urgency(), 9)


def test_topics_of_one_band_are_served_as_they_came() -> None:
    ready: Schedule[int] = Schedule()
    for number in range(50):
        ready.mark(number, Urgency(manual=100), 0)
    assert [taken[0] for taken in iter(lambda: ready.take(0), None)] == list(range(50))


def test_full_bands_share_turns_by_their_weights() -> None:
    ready: Schedule[tuple[str, int]] = Schedule()
    for number in range(400):
        for name, manual in BANDS.items():
            ready.mark((name, number), Urgency(manual=manual), 0)
    for _ in range(10):
        served = Counter(taken[0][0] for taken in (ready.take(0) for _ in range(sum(WEIGHTS))) if taken)
        assert [served[name] for name in BANDS] == [8, 4, 2, 1, 1]


def test_band_without_work_leaves_its_turns_to_the_others() -> None:
    ready: Schedule[tuple[str, int]] = Schedule()
    for number in range(100):
        ready.mark(("b", number), Urgency(manual=600), 0)
        ready.mark(("d", number), Urgency(manual=10), 0)
    served = Counter(taken[0][0] for taken in (ready.take(0) for _ in range(50)) if taken)
    assert served == {"b": 40, "d": 10}


def test_saved_turns_of_an_idle_band_do_not_pile_up() -> None:
    ready: Schedule[tuple[str, int]] = Schedule()
    for number in range(100):
        ready.mark(("d", number), Urgency(manual=10), 0)
    for _ in range(60):
        ready.take(0)
    for number in range(100):
        ready.mark(("b", number), Urgency(manual=600), 0)
    served = [taken[0][0] for taken in (ready.take(0) for _ in range(15)) if taken]
    assert served.count("d") == 3


@pytest.mark.parametrize(
    ("urgency", "climbs"),
    [
        (Urgency(manual=0), [(2500, 2), (5000, 1), (7500, 0)]),
        (Urgency(manual=260), [(2400, 1), (4900, 0)]),
        (Urgency(manual=-1000), [(10_000, 0)]),
        (Urgency(manual=-200), [(2000, 3), (4500, 2), (7000, 1), (9500, 0)]),
    ],
)
def test_waiting_lifts_a_topic_band_by_band(urgency: Urgency, climbs: list[tuple[int, int]]) -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("t", urgency, 0)
    band = band_of(urgency.priority(0))
    for at_ms, next_band in climbs:
        assert ready.band("t", at_ms - AGING_TICK_MS) == band
        assert ready.band("t", at_ms + AGING_TICK_MS) == next_band
        band = next_band
    assert ready.band("other", 0) is None


def test_topic_whose_reading_fades_climbs_a_little_later() -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("t", Urgency(idle_ms=0), 0)
    lifted_ms = next(at_ms for at_ms in range(0, 10_000, 10) if ready.band("t", at_ms) == 0)
    exact_ms = next(at_ms for at_ms in range(10_000) if Urgency(idle_ms=0).priority(at_ms) >= 750)
    assert 0 <= lifted_ms - exact_ms <= 2 * AGING_TICK_MS


def test_topics_served_at_once_leave_nothing_behind() -> None:
    ready: Schedule[int] = Schedule()
    for now_ms in range(20_000):
        ready.mark(now_ms % 7, Urgency(manual=0), now_ms)
        assert ready.take(now_ms) is not None
    assert len(ready._climbs) + len(ready._fresh) <= 7


def test_whoever_waited_ten_seconds_is_in_the_top_band() -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("low", Urgency(manual=-1000), 0)
    for number in range(3):
        ready.mark(f"high{number}", Urgency(manual=1000), WAIT_MS_MAX - 1)
    assert ready.take(WAIT_MS_MAX - 1) == ("high0", 0)
    order = [taken[0] for taken in (ready.take(WAIT_MS_MAX) for _ in range(3)) if taken]
    assert order == ["high1", "high2", "low"]


def test_shed_topic_waits_below_and_keeps_its_time() -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("low", Urgency(manual=-1), 0)
    ready.set_shed(True, 0)
    assert ready.take(WAIT_MS_MAX * 2) is None
    assert len(ready) == 1
    assert not ready.servable()
    ready.mark("plain", Urgency(manual=0), WAIT_MS_MAX * 2)
    assert ready.take(WAIT_MS_MAX * 2) == ("plain", 0)
    ready.set_shed(False, WAIT_MS_MAX * 2)
    for number in range(20):
        ready.mark(f"high{number}", Urgency(manual=1000), WAIT_MS_MAX * 2)
    assert ready.take(WAIT_MS_MAX * 2) == ("low", WAIT_MS_MAX * 2)


def test_topic_that_had_climbed_goes_back_when_shedding_begins() -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("low", Urgency(manual=-100), 0)
    ready.mark("other", Urgency(manual=500), 1500)
    ready.take(1500)
    ready.set_shed(True, 1500)
    assert ready.take(1500) is None


def test_forgotten_topic_is_never_served() -> None:
    ready: Schedule[str] = Schedule()
    ready.mark("gone", Urgency(), 0)
    ready.mark("here", Urgency(), 0)
    ready.forget("gone")
    ready.forget("never")
    assert ready.take(60_000) == ("here", 60_000)
    assert ready.take(60_000) is None


def test_recently_read_topic_goes_before_one_nobody_reads() -> None:
    ready: Schedule[str] = Schedule()
    for number in range(8):
        ready.mark(f"unread{number}", Urgency(idle_ms=None), 0)
        ready.mark(f"read{number}", Urgency(idle_ms=0), 0)
    served = [taken[0] for taken in (ready.take(0) for _ in range(5)) if taken]
    assert sum(name.startswith("read") for name in served) == 4


@pytest.mark.parametrize("seed", range(5))
def test_nobody_starves_under_a_flood_of_urgent_topics(seed: int) -> None:
    """Every topic is served within ten seconds and what stands before it in the top band then."""
    draw = random.Random(seed)
    ready: Schedule[int] = Schedule()
    waiting: dict[int, int] = {}
    worst = 0
    for now_ms in range(0, 40_000, 5):
        for _ in range(2):
            key = draw.randrange(40)
            urgent = key < 20
            if ready.mark(key, Urgency(manual=1000 if urgent else draw.randrange(-1000, 750)), now_ms):
                waiting[key] = now_ms
        taken = ready.take(now_ms)
        if taken is not None:
            key, waited_ms = taken
            assert waited_ms == now_ms - waiting.pop(key)
            worst = max(worst, waited_ms)
    assert worst <= WAIT_MS_MAX + 40 * 5
    assert all(now_ms - since <= WAIT_MS_MAX + 40 * 5 for since in waiting.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mark", "take", "forget", "shed", "calm"]),
            st.integers(0, 5),
            st.integers(-1200, 1200) | st.none(),
            st.integers(0, 6000),
        ),
        max_size=80,
    )
)
def test_every_marked_topic_is_served_exactly_once(
    steps: list[tuple[str, int, int | None, int]],
) -> None:
    ready: Schedule[int] = Schedule()
    waiting: dict[int, int] = {}
    now_ms = 0
    for what, key, manual, pause_ms in steps:
        now_ms += pause_ms
        if what == "mark":
            assert ready.mark(key, Urgency(manual=manual, idle_ms=pause_ms), now_ms) is (key not in waiting)
            waiting.setdefault(key, now_ms)
        elif what == "forget":
            ready.forget(key)
            waiting.pop(key, None)
        elif what in ("shed", "calm"):
            ready.set_shed(what == "shed", now_ms)
        else:
            servable = ready.servable()
            taken = ready.take(now_ms)
            if taken is None:
                assert not servable
                assert ready.shed or not waiting
            else:
                assert taken[1] == now_ms - waiting.pop(taken[0])
        assert len(ready) == len(waiting)
    ready.set_shed(False, now_ms)
    left = [taken[0] for taken in iter(lambda: ready.take(now_ms), None)]
    assert sorted(left) == sorted(waiting)
