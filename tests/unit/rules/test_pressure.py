from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.rules.pressure import SHED_SAMPLES, Governor, Relief, Sample


def calm() -> Sample:
    return Sample(ready=0, workers=2, waited_ms=0.0, pool_busy=0.0)


def busy(share: float) -> Sample:
    return Sample(ready=0, workers=2, waited_ms=0.0, pool_busy=share)


def test_idle_server_asks_for_nothing() -> None:
    assert Governor().sample(calm()) == Relief()


@pytest.mark.parametrize(
    ("sample", "pressure"),
    [
        (Sample(ready=4, workers=2, waited_ms=0.0, pool_busy=0.0), 0.5),
        (Sample(ready=400, workers=2, waited_ms=0.0, pool_busy=0.0), 1.0),
        (Sample(ready=0, workers=2, waited_ms=0.0, pool_busy=0.7), 0.7),
        (Sample(ready=2, workers=2, waited_ms=0.0, pool_busy=0.7), 0.7),
        (Sample(ready=0, workers=0, waited_ms=0.0, pool_busy=-1.0), 0.0),
        (Sample(ready=0, workers=1, waited_ms=0.0, pool_busy=float("nan")), 0.0),
    ],
)
def test_pressure_is_the_worst_of_its_signs(sample: Sample, pressure: float) -> None:
    assert Governor().sample(sample).pressure == pytest.approx(pressure)


def test_waiting_counts_as_a_running_average() -> None:
    governor = Governor()
    waited = Sample(ready=0, workers=2, waited_ms=5.0, pool_busy=0.0)
    first = governor.sample(waited).pressure
    later = [governor.sample(waited).pressure for _ in range(20)]
    assert 0.2 < first < 0.4
    assert later == sorted(later)
    assert later[-1] == pytest.approx(1.0, abs=0.01)
    assert governor.sample(calm()).pressure < 0.8


def test_wakeups_gather_and_commits_widen_with_pressure() -> None:
    governor = Governor()
    assert governor.sample(busy(0.2)).coalesce_ms == 0
    assert governor.sample(busy(0.4)).window_ms == 0
    assert governor.sample(busy(0.6)).coalesce_ms == pytest.approx(10)
    assert governor.sample(busy(0.6)).window_ms == pytest.approx(0.5 + 9.5 * 0.6)
    full = governor.sample(busy(1.0))
    assert full.coalesce_ms == pytest.approx(20)
    assert full.window_ms == pytest.approx(10)


def test_one_bad_sample_sheds_nothing_and_shedding_ends_only_well_below() -> None:
    governor = Governor()
    assert not governor.sample(busy(0.9)).shed
    governor.sample(busy(0.5))
    shed = [governor.sample(busy(0.9)).shed for _ in range(SHED_SAMPLES)]
    assert shed == [False] * (SHED_SAMPLES - 1) + [True]
    assert governor.sample(busy(0.7)).shed
    assert not governor.sample(busy(0.59)).shed
    assert not governor.sample(busy(0.79)).shed


def test_writes_are_refused_only_at_full_pressure_with_a_full_queue() -> None:
    governor = Governor()
    almost, full = governor.sample(busy(0.9)), governor.sample(busy(1.0))
    assert not almost.refuses(queue_full=True)
    assert not full.refuses(queue_full=False)
    assert full.refuses(queue_full=True)
    assert not full.refuses(queue_full=True, disable_backpressure=True)


@given(
    st.lists(
        st.builds(
            Sample,
            ready=st.integers(0, 1000),
            workers=st.integers(0, 16),
            waited_ms=st.floats(0, 1e6),
            pool_busy=st.floats(0, 1),
        ),
        max_size=50,
    )
)
def test_relief_stays_within_its_bounds_and_ends_with_the_load(samples: list[Sample]) -> None:
    governor = Governor()
    for sample in samples:
        relief = governor.sample(sample)
        assert 0 <= relief.pressure <= 1
        assert 0 <= relief.coalesce_ms <= 20
        assert relief.window_ms == 0 or 0.5 <= relief.window_ms <= 10
    for _ in range(100):
        relief = governor.sample(calm())
    assert not relief.shed
    assert relief.pressure < 0.2
