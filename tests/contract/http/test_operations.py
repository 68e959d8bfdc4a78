"""What operators ask for: rates, snapshots, a look at every record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.http.client import Api, InProcess, eventually
from tests.contract.http.inprocess import Engine
from topics.api.app import AppOptions
from topics.api.auth import parse_keys
from topics.storage.options import StoreOptions


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Engine]:
    """With small segments."""
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(segment_max_events=10))
    yield engine
    engine.close()


def test_stats_show_how_fast_topics_grow(api: Api, topic: str) -> None:
    first = api.call("GET", f"/v0/stats?prefix={topic}").json
    assert {
        "store", "uptime_ms", "watched_ms", "topics", "records_live", "bytes_live", "groups", "connections",
        "records_per_s", "append_ms", "sync_ms", "pressure", "wal_bytes", "tiers", "by_topic", "truncated",
        "performance",
    } == set(first)  # fmt: skip
    assert (first["by_topic"], first["truncated"]) == ([], False)
    api.append(f"{topic}.slow", 1)
    api.append(f"{topic}.fast", *range(100))
    seen = eventually(lambda: (found := api.call("GET", f"/v0/stats?prefix={topic}").json)["watched_ms"] and found)
    fast, slow = seen["by_topic"]
    assert (fast["topic"], fast["head_seq"], fast["count"]) == (f"{topic}.fast", 100, 100)
    assert fast["records_per_s"]["60s"] > slow["records_per_s"]["60s"] > 0
    assert seen["records_per_s"]["60s"] >= fast["records_per_s"]["60s"]
    assert seen["append_ms"]["p50"] <= seen["append_ms"]["p99"]
    one = api.call("GET", f"/v0/stats?prefix={topic}&limit=1").json
    assert (len(one["by_topic"]), one["truncated"]) == (1, True)


def test_stats_show_the_group_that_is_furthest_behind(api: Api, topic: str) -> None:
    api.append(topic, *range(10))
    look = f"/v0/stats?prefix={topic}"
    (row,) = api.call("GET", look).json["by_topic"]
    assert (row["groups"], row["behind"]) == (0, None)
    for group, seq in (("near", 9), ("far", 4)):
        made = {"mode": "stream", "start": {"seq": seq}}
        assert api.call("PUT", f"/v0/topics/{topic}/groups/{group}", made).status == 201
    seen = api.call("GET", look).json
    assert seen["groups"] >= 2
    (row,) = seen["by_topic"]
    assert (row["groups"], row["behind"]) == (2, {"group": "far", "lag": 7})
    api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 7})
    (row,) = api.call("GET", look).json["by_topic"]
    assert row["behind"]["lag"] == 4, "what was deleted in front is nobody's"


def test_stats_show_a_key_its_own_topics_alone(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "s"), AppOptions(version="test", keyring=parse_keys("all,mine:r:mine.")))
    try:
        everything = Api(InProcess(engine), "all")
        everything.append("mine.a", 1)
        everything.append("theirs", 1, 2)
        seen = Api(InProcess(engine), "mine").call("GET", "/v0/stats").json
        assert [row["topic"] for row in seen["by_topic"]] == ["mine.a"]
        assert (seen["topics"], seen["records_live"]) == (1, 1)
    finally:
        engine.close()


def test_sampling_ends_when_nobody_asks_any_more(small: Engine) -> None:
    api = Api(InProcess(small))
    api.call("GET", "/v0/stats")
    assert small.service.stats.watched
    small.clock.advance(121_000)
    assert eventually(lambda: not small.service.stats.watched)
    assert api.call("GET", "/v0/stats").json["watched_ms"] == 0


def test_snapshot_is_written_when_asked_for(small: Engine) -> None:
    api = Api(InProcess(small))
    api.append("a", 1)
    first = api.call("POST", "/v0/admin/snapshot").json
    second = api.call("POST", "/v0/admin/snapshot").json
    assert (first["done"], second["done"]) == (True, True)
    assert second["snapshot"] > first["snapshot"]


def test_scrub_names_damaged_records_and_nothing_else(small: Engine) -> None:
    api = Api(InProcess(small))
    api.append("a", *range(35))
    api.append("b", *range(10))
    small.pump.checkpoint()
    whole = api.call("POST", "/v0/admin/scrub").json
    del whole["performance"]
    assert whole == {"topics": 2, "segments": 4, "records": 40, "damaged": 0, "damage": []}
    segment = small.store.topics["a"].segments[1]
    data = bytearray(Path(segment.path("data")).read_bytes())
    data[len(data) // 2] ^= 1
    Path(segment.path("data")).write_bytes(data)
    small.store.handles.close()
    found = api.call("POST", "/v0/admin/scrub?topic=a").json
    assert (found["topics"], found["segments"], found["damaged"]) == (1, 3, 1)
    (damage,) = found["damage"]
    assert (damage["topic"], damage["file"].split("/")[-1]) == ("a", Path(segment.path("data")).name)
    assert not damage["file"].startswith("/")
    assert api.call("POST", "/v0/admin/scrub?topic=b").json["damaged"] == 0
    assert api.call("POST", "/v0/admin/scrub?topic=nobody").problem == (404, "topic_not_found")
