"""What all tests share."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine makes a single example slow; only the whole run has a time worth judging.
# Where a change is judged, the same change gets the same examples again.
settings.register_profile(
    "topics",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("topics")

# The first seed of the power-cut simulation: another one in every run, the same in all workers of a run.
SEED = int(os.environ.setdefault("TOPICS_TEST_SEED", str(random.SystemRandom().randrange(1_000_000_000))))


@pytest.fixture(autouse=True)
def no_server_outlives_its_test() -> Iterator[None]:
    """A test that failed half-way leaves no process behind. Servers that several tests share end with their fixture."""
    yield
    live = sys.modules.get("tests.contract.http.live")
    if live is not None:
        live.end_all(server for server in live.RUNNING if not server.shared)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests share one session, so one worker has them all: they come first, and the others run beside them."""
    items.sort(key=lambda item: "spark" not in item.path.parts)


def pytest_report_header() -> str:
    return f"power-cut simulation: first seed {SEED} (TOPICS_TEST_SEED={SEED} runs the same seeds again)"
