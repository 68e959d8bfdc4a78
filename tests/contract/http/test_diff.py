"""Reading from a cursor, the long poll, and deleting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.http.client import Api, InProcess, eventually
from tests.contract.http.inprocess import Engine
from topics.broker import warmth
from topics.broker.reading import Page, read_page
from topics.storage import handles, names, namesearch
from topics.storage.options import StoreOptions


def test_diff_answers_every_field(api: Api, topic: str) -> None:
    api.append(topic, {"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}, 2)
    answer = api.diff(topic, limit=1, include_tags=True).json
    performance = answer.pop("performance")
    record = answer["records"].pop()
    assert answer == {
        "topic": topic, "records": [], "next_from_seq": 1, "head_seq": 2, "earliest_seq": 1, "caught_up": False,
        "tombstone": None, "lag": 1,
    }  # fmt: skip
    assert record.pop("$ts") > 0
    assert record == {"$seq": 1, "$node": "n", "$tag": "t", "data": {"x": 1}, "meta": {"m": 1}}
    assert performance["records_scanned"] == 1


def test_empty_body_reads_from_the_start(api: Api, topic: str) -> None:
    api.append(topic, 1)
    assert api.call("POST", f"/v0/topics/{topic}/diff").json["records"][0]["data"] == 1
    assert api.call("POST", "/v0/topics/nobody/diff").problem == (404, "topic_not_found")


def test_limits_are_clamped(api: Api, topic: str) -> None:
    api.append(topic, *range(1500))
    assert len(api.seqs(topic)) == 256
    assert len(api.seqs(topic, limit=0)) == 256
    assert len(api.seqs(topic, limit=4_000_000_000)) == 1000
    assert api.seqs(topic, from_seq=1498, limit=5) == [1499, 1500]
    for bad in ({"limit": -1}, {"limit": 1 << 32}, {"from_seq": 1 << 64}, {"from_seq": None}, {"wait_ms": "1"}):
        assert api.diff(topic, **bad).problem == (400, "invalid_request"), bad


def test_budget_always_lets_the_first_record_through(api: Api, topic: str) -> None:
    api.append(topic, "x" * 100, "y" * 100, "z")
    assert api.seqs(topic, max_batch_bytes=1) == [1]
    assert api.seqs(topic, max_batch_bytes=204) == [1, 2]
    assert api.seqs(topic, max_batch_bytes=1 << 63) == [1, 2, 3]


def test_a_page_ends_before_the_record_that_has_no_room_whatever_lies_dead_in_front_of_it(api: Api, topic: str) -> None:
    api.append(topic, "x" * 8)
    assert api.call("POST", "/v0/admin/checkpoint").status == 200
    api.append(topic, *({"data": at, "tag": "dead"} for at in range(5)), "y")
    api.delete(topic, match="dead")
    answer = api.diff(topic, max_batch_bytes=10).json
    assert ([record["$seq"] for record in answer["records"]], answer["next_from_seq"]) == ([1], 6)


def test_node_filter_passes_over_without_using_the_limit(api: Api, topic: str) -> None:
    api.append(topic, *({"data": i, "node": "ab"[i % 2]} for i in range(10)), {"data": 10})
    answer = api.diff(topic, node="a", limit=3).json
    assert [record["data"] for record in answer["records"]] == [1, 3, 5]
    assert answer["next_from_seq"] == 6
    rest = api.diff(topic, node=["a", "b"]).json
    assert [record["data"] for record in rest["records"]] == [10]
    assert rest["caught_up"] is True
    assert rest["performance"]["records_scanned"] == 11
    assert len(api.seqs(topic, node="A")) == 11
    assert [r["data"] for r in api.diff(topic, node=[f"n{i}" for i in range(100)] + ["a"]).json["records"]] == [
        1, 3, 5, 7, 9, 10,
    ]  # fmt: skip
    api.put(topic, dedupe_node=False)
    assert len(api.seqs(topic, node="a")) == 11


def test_cap_gives_a_tombstone_with_records_after_it(api: Api, topic: str) -> None:
    api.put(topic, cap_records=3)
    api.append(topic, *range(10))
    answer = api.diff(topic, limit=1).json
    assert answer["tombstone"] == {
        "gap_from": 1, "gap_to": 7, "reason": "cap", "missed_estimate": 7, "earliest_seq": 8, "head_seq": 10,
    }  # fmt: skip
    assert [record["$seq"] for record in answer["records"]] == [8]
    assert (answer["next_from_seq"], answer["performance"]["records_scanned"]) == (8, 1)
    assert api.diff(topic, from_seq=7).json["tombstone"] is None


def test_age_gives_a_tombstone_of_its_own_reason(own: Api, engine: Engine) -> None:
    own.put("a", ttl_ms=1000)
    own.append("a", 1, 2)
    engine.clock.advance(2000)
    answer = own.diff("a").json
    assert (answer["tombstone"]["reason"], answer["tombstone"]["gap_to"]) == ("ttl", 2)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 2, True)
    own.append("a", 3)
    own.call("PATCH", "/v0/topics/a", {"cap_records": 1})
    own.append("a", 4)
    assert own.diff("a").json["tombstone"]["reason"] == "mixed"


def test_cold_pages_are_brought_in_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(segment_max_events=10))
    readers: list[str] = []

    def noted(*args: Any) -> Page:
        readers.append(threading.current_thread().name)
        return read_page(*args)

    monkeypatch.setattr(warmth, "read_page", noted)
    try:
        api = Api(InProcess(engine))
        api.append("a", *range(35))
        assert len(api.seqs("a")) == 35
        assert readers == [], "what was written lately is in memory"
        engine.pump.checkpoint()
        assert api.seqs("a", limit=10) == list(range(1, 11))
        assert len(readers) == 1, "the first read of a segment opens and proves its files"
        assert "test-loop" not in readers
        assert api.seqs("a", limit=10) == list(range(1, 11))
        assert api.seqs("a", from_seq=31) == [32, 33, 34, 35]
        assert len(readers) == 1
        monkeypatch.setattr(handles, "is_resident", lambda *_: False)
        assert api.seqs("a", limit=10) == list(range(1, 11)), "known to be in memory for a while"
        assert len(readers) == 1
        engine.clock.advance(1000)
        assert api.seqs("a", limit=10) == list(range(1, 11))
        assert len(readers) == 2
    finally:
        engine.close()


def test_delete_by_tag_searches_files_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(segment_max_events=10))
    searchers: list[str] = []
    search_segment = names.search_segment

    def noted(*args: Any) -> Any:
        searchers.append(threading.current_thread().name)
        return search_segment(*args)

    for module in (namesearch, names):
        monkeypatch.setattr(module, "search_segment", noted)
    try:
        api = Api(InProcess(engine))
        api.append("a", *({"data": i, "tag": f"t{i % 2}"} for i in range(35)))
        assert api.delete("a", match="t1", before_seq=5).json["deleted"] == 2
        assert searchers == [], "nothing is in files yet"
        engine.pump.checkpoint()
        assert api.delete("a", match="t1").json["deleted"] == 15
        assert len(searchers) == 3
        assert "test-loop" not in searchers
        assert api.delete("a", match="t*", before_seq=31).json["deleted"] == 15
        assert api.seqs("a", from_seq=30) == [31, 33, 35]
    finally:
        engine.close()


def test_records_expire_on_a_server_that_has_just_started(api: Api, topic: str) -> None:
    api.put(topic, ttl_ms=1)
    api.append(topic, 1, 2)
    tombstone = eventually(lambda: api.diff(topic).json["tombstone"])
    assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == ("ttl", 1, 2)
    assert api.state(topic)["count"] == 0


def test_cursor_beyond_the_head_means_recreated(api: Api, topic: str) -> None:
    api.append(topic, 1, 2)
    answer = api.diff(topic, from_seq=9).json
    assert answer["tombstone"] == {
        "gap_from": 1, "gap_to": 2, "reason": "recreated", "missed_estimate": 2, "earliest_seq": 1, "head_seq": 2,
    }  # fmt: skip
    assert [record["$seq"] for record in answer["records"]] == [1, 2]


def test_cursor_beyond_an_empty_topic_means_recreated_too(api: Api, topic: str) -> None:
    api.put(topic)
    answer = api.diff(topic, from_seq=9).json
    assert answer["tombstone"] == {
        "gap_from": 1, "gap_to": 0, "reason": "recreated", "missed_estimate": 1, "earliest_seq": 1, "head_seq": 0,
    }  # fmt: skip
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["lag"]) == ([], 0, True, 0)


def test_deleted_records_leave_silent_gaps(api: Api, topic: str) -> None:
    api.append(topic, *({"data": i, "tag": "ab"[i % 2]} for i in range(6)))
    gone = api.delete(topic, match=["tag", "Eq", "a"])
    assert gone.status == 200
    answer = gone.json
    del answer["performance"]
    assert answer == {"topic": topic, "deleted": 3, "earliest_seq": 2, "head_seq": 6, "count": 3, "bytes": 3}
    read = api.diff(topic).json
    assert ([record["data"] for record in read["records"]], read["tombstone"]) == ([1, 3, 5], None)
    assert api.delete(topic, before_seq=99).json["deleted"] == 3
    empty = api.diff(topic).json
    assert (empty["records"], empty["next_from_seq"], empty["caught_up"], empty["earliest_seq"]) == ([], 6, True, 7)


@pytest.mark.parametrize(
    ("match", "left"),
    [
        ("a.x", [2, 3, 4]),
        ("a.*", [3, 4]),
        ("*", [4]),
        (["tag", "Glob", "a*"], [3, 4]),
        (["tag", "Eq", "a.*"], [1, 2, 3, 4]),
        (["tag", "Glob", "a.*x*"], [1, 2, 3, 4]),
    ],
)
def test_delete_selects_by_tag(api: Api, topic: str, match: Any, left: list[int]) -> None:
    api.append(topic, {"data": 1, "tag": "a.x"}, {"data": 2, "tag": "a.y"}, {"data": 3, "tag": "b"}, {"data": 4})
    assert api.delete(topic, match=match).status == 200
    assert api.seqs(topic) == left


def test_delete_needs_a_selector_of_the_right_shape(api: Api, topic: str) -> None:
    assert api.delete("nobody").problem == (400, "invalid_request")
    assert api.delete("nobody", before_seq=1).problem == (404, "topic_not_found")
    api.append(topic, 1)
    bad: list[Any] = [
        [],
        ["tag"],
        ["node", "Eq", "a"],
        ["tag", "eq", "a"],
        ["tag", "Glob", "a"],
        ["tag", "Eq", 5],
        5,
        {},
    ]
    for match in bad:
        assert api.delete(topic, match=match).problem == (400, "invalid_request"), match
    assert api.delete(topic, before_seq=-1).problem == (400, "invalid_request")
    assert api.delete(topic, before_seq=None, match=None).problem == (400, "invalid_request")
    assert api.call("POST", f"/v0/topics/{topic}/delete").status == 415


def test_match_with_before_seq_bounds_the_match(api: Api, topic: str) -> None:
    api.append(topic, *({"data": i, "tag": "a"} for i in range(4)))
    assert api.delete(topic, match="a", before_seq=3).json["deleted"] == 2
    assert api.seqs(topic) == [3, 4]


def test_long_poll_wakes_on_append(api: Api, topic: str) -> None:
    api.append(topic, 1)
    with ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        waiting = pool.submit(api.diff, topic, from_seq=1, wait_ms=20_000)
        time.sleep(0.15)
        api.append(topic, "now")
        answer = waiting.result(10).json
    assert [record["data"] for record in answer["records"]] == ["now"]
    assert time.monotonic() - started < 5


def test_long_poll_ends_with_its_time(api: Api, topic: str) -> None:
    api.append(topic, 1)
    started = time.monotonic()
    answer = api.diff(topic, from_seq=1, wait_ms=200).json
    assert (answer["records"], answer["caught_up"]) == ([], True)
    assert 0.15 < time.monotonic() - started < 5


def test_long_poll_with_something_to_say_does_not_wait(api: Api, topic: str) -> None:
    api.append(topic, 1)
    started = time.monotonic()
    assert len(api.diff(topic, wait_ms=20_000).json["records"]) == 1
    assert api.diff(topic, from_seq=9, wait_ms=20_000).json["tombstone"]["reason"] == "recreated"
    assert time.monotonic() - started < 5


def test_drop_wakes_a_long_poll(api: Api, topic: str) -> None:
    api.append(topic, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.diff, topic, from_seq=1, wait_ms=20_000)
        time.sleep(0.15)
        api.call("DELETE", f"/v0/topics/{topic}")
        assert waiting.result(10).problem == (404, "topic_not_found")


def test_no_append_between_read_and_wait_is_missed(api: Api, topic: str) -> None:
    api.append(topic, 0)
    seen: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        cursor = 1
        while not stop.is_set() and len(seen) < 60:
            answer = api.diff(topic, from_seq=cursor, wait_ms=3000).json
            seen.extend(record["data"] for record in answer["records"])
            cursor = answer["next_from_seq"]

    reader = threading.Thread(target=follow)
    reader.start()
    started = time.monotonic()
    for number in range(60):
        api.append(topic, number)
    reader.join(20)
    stop.set()
    assert seen == list(range(60))
    assert time.monotonic() - started < 15
