"""When the thread that syncs by the timer looks again."""

from __future__ import annotations

import pytest

from topics.storage.commit import until_due_ns

MS = 1_000_000


@pytest.mark.parametrize(
    ("dirty_since", "until"),
    [
        ([], 10 * MS),
        ([None, None], 10 * MS),
        ([None, 95 * MS], 5 * MS),
        ([99 * MS, 93 * MS, None], 3 * MS),
        ([90 * MS], MS),
        ([10 * MS], MS),
    ],
)
def test_next_sync_is_due_when_the_oldest_bytes_are(dirty_since: list[int | None], until: int) -> None:
    assert until_due_ns(dirty_since, 10 * MS, 100 * MS) == until
