"""`topics top`, against a server that says what it was told to say."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.conftest import Command
from tests.unit.client.server import FakeServer, answer, problem


def stats(watched_ms: int) -> dict[str, Any]:
    rates = {"1s": 1234.0, "10s": 0.5, "60s": 0.0}
    row = {
        "topic": "orders", "records_per_s": rates, "head_seq": 7, "count": 7, "bytes": 2048, "segments": 1, "groups": 2,
        "behind": {"group": "export", "lag": 1500},
    }  # fmt: skip
    return {
        "watched_ms": watched_ms, "topics": 1, "records_live": 7, "bytes_live": 2048, "connections": 2,
        "records_per_s": rates, "append_ms": {"p50": 0.05, "p99": 1.0}, "sync_ms": {"p50": None, "p99": None},
        "pressure": 0.25, "by_topic": [row], "truncated": False,
    }  # fmt: skip


def test_one_look_is_a_table_for_people(topics: Command) -> None:
    with FakeServer(answer(200, stats(5000))) as server:
        ran = topics("top", "ord", "--once", "--limit", "3", "--url", server.url)
    assert server.seen[0].target == "/v0/stats?prefix=ord&limit=3"
    assert ran.status == 0
    assert "1 topics · 7 records · 2.0 KiB · 0.5 records/s · append 0.05/1 ms · sync –/– ms" in ran.out
    assert ran.out.splitlines()[-1].split() == [
        "orders",
        "1,234",
        "0.5",
        "0.0",
        "7",
        "7",
        "2.0",
        "KiB",
        "1",
        "2",
        "1,500",
        "export",
    ]


def test_server_that_nobody_watched_is_asked_twice(topics: Command) -> None:
    with FakeServer(answer(200, stats(0)), answer(200, stats(100))) as server:
        ran = topics("top", "--once", "--interval", "0.1", "--json", "--url", server.url)
    assert [line["watched_ms"] for line in ran.lines] == [100]
    assert len(server.seen) == 2


def test_interval_out_of_bounds_is_refused(topics: Command) -> None:
    ran = topics("top", "--interval", "0")
    assert (ran.status, "0.1..3600" in ran.err) == (2, True)


def test_looks_into_a_pipe_come_one_below_the_other(topics: Command) -> None:
    with FakeServer(answer(200, stats(1)), answer(200, stats(2)), problem(404, "not_found")) as server:
        ran = topics("top", "--interval", "0.1", "--url", server.url)
    assert ran.status == 1
    assert ran.out.count("1 topics · 7 records") == 2
    assert "\x1b" not in ran.out
