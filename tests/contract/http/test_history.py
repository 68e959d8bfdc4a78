"""The past of a topic: pages, streams, lookups, segments, heads."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from tests.contract.http.client import Api, InProcess, Reply, eventually
from tests.contract.http.inprocess import Engine
from topics.model import limits
from topics.storage.options import StoreOptions

NDJSON = {"accept": "application/x-ndjson"}
ARROW = {"accept": "application/vnd.apache.arrow.stream"}


def records(api: Api, topic: str, query: str = "", headers: dict[str, str] | None = None) -> Reply:
    return api.call("GET", f"/v0/topics/{topic}/records{query}", headers=headers)


def lines(api: Api, topic: str, query: str = "") -> list[Any]:
    answer = api.call("GET", f"/v0/topics/{topic}/records{query}", headers=NDJSON)
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


def rows(api: Api, topic: str, query: str = "") -> list[dict[str, Any]]:
    answer = api.call("GET", f"/v0/topics/{topic}/records{query}", headers=ARROW)
    assert answer.status == 200
    table = pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_page_of_history_begins_at_from_seq_itself(api: Api, topic: str) -> None:
    api.append(topic, *({"data": i, "tag": "ab"[i % 2], "key": f"k{i}", "node": "n"} for i in range(1, 11)))
    page = records(api, topic, "?from_seq=3&to_seq=6").json
    assert [record["$seq"] for record in page["records"]] == [3, 4, 5]
    assert (page["next_from_seq"], page["head_seq"]) == (6, 10)
    assert set(page["records"][0]) == {"$seq", "$ts", "$node", "$tag", "$key", "data"}
    assert set(records(api, topic, "?include=data").json["records"][0]) == {"$seq", "$ts", "$node", "data"}
    assert set(records(api, topic, "?include=").json["records"][0]) == {"$seq", "$ts", "$node"}
    page = records(api, topic, "?limit=4").json
    assert (len(page["records"]), page["next_from_seq"]) == (4, 5)
    assert records(api, topic, "?from_seq=11").json["records"] == []
    assert records(api, topic, "?from_seq=99").json["next_from_seq"] == 99
    assert records(api, "nobody").problem == (404, "topic_not_found")


def test_history_is_filtered_by_tag_node_and_key(api: Api, topic: str) -> None:
    api.append(
        topic,
        {"data": 1, "tag": "a.x", "node": "n"},
        {"data": 2, "tag": "a.y", "key": "k"},
        {"data": 3, "key": "k", "node": "n"},
        {"data": 4},
    )
    found = {
        query: [record["data"] for record in records(api, topic, query).json["records"]]
        for query in ("?tag=a.x", "?tag=a.*", "?node=n", "?key=k", "?key=k&node=n", "?tag=b")
    }
    assert found == {
        "?tag=a.x": [1], "?tag=a.*": [1, 2], "?node=n": [1, 3], "?key=k": [2, 3], "?key=k&node=n": [3], "?tag=b": [],
    }  # fmt: skip
    assert [line["data"] for line in lines(api, topic, "?key=k")[:-1]] == [2, 3]
    assert [row["data"] for row in rows(api, topic, "?key=k")[:-1]] == ["2", "3"]


def test_streams_say_their_end_and_their_gaps(api: Api, topic: str) -> None:
    api.put(topic, cap_records=3)
    api.append(topic, *({"data": i, "meta": {"m": i}} for i in range(1, 9)))
    gap = {"gap_from": 1, "gap_to": 5, "reason": "cap", "missed_estimate": 5, "earliest_seq": 6, "head_seq": 8}
    found = lines(api, topic, "?from_seq=1")
    assert found[0] == {"tombstone": gap}
    assert [line["$seq"] for line in found[1:4]] == [6, 7, 8]
    assert found[4:] == [{"end": {"next_from_seq": 9, "head_seq": 8}}]
    assert records(api, topic, "?from_seq=1").json["records"][0] == {"tombstone": gap}
    assert "tombstone" not in records(api, topic).json["records"][0]
    table = rows(api, topic, "?from_seq=1")
    assert [row["kind"] for row in table] == ["gap", "record", "record", "record", "end"]
    assert (table[0]["gap_from"], table[0]["gap_to"], table[0]["reason"]) == (1, 5, "cap")
    assert (table[1]["seq"], table[1]["data"], table[1]["meta"], table[1]["tag"]) == (6, "6", '{"m":6}', None)
    assert (table[-1]["gap_from"], table[-1]["gap_to"]) == (9, 8)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/x-ndjson;q=0.5, application/json", "application/json"),
        ("application/json, application/x-ndjson", "application/json"),
        ("application/x-ndjson, application/json", "application/x-ndjson"),
        ("Application/X-NDJSON", "application/x-ndjson"),
        ("*/*, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson;q=0.1, */*", "application/json"),
        ("application/x-ndjson;q=0", "application/json"),
        ("application/x-ndjson;q=0.8, application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("text/html, */*;q=0.1", "application/json"),
        ("text/html", "application/json"),
    ],
)
def test_history_comes_in_the_form_that_is_liked_best(api: Api, topic: str, accept: str, kind: str) -> None:
    api.append(topic, 1)
    assert records(api, topic, headers={"accept": accept}).headers["content-type"] == kind


def test_limit_ends_a_stream_where_the_next_goes_on(api: Api, topic: str) -> None:
    api.append(topic, *range(20))
    assert lines(api, topic, "?limit=5")[-1] == {"end": {"next_from_seq": 6, "head_seq": 20}}
    table = rows(api, topic, "?limit=5")
    assert ([row["seq"] for row in table[:-1]], table[-1]["gap_from"]) == ([1, 2, 3, 4, 5], 6)


def test_long_history_comes_whole_over_every_format(api: Api, topic: str) -> None:
    for start in range(0, 30_000, 10_000):
        api.append(topic, *({"data": i} for i in range(start, start + 10_000)), query="?return_seqs=false")
    api.delete(topic, before_seq=11)
    found = lines(api, topic)
    assert [line["data"] for line in found[:-1]] == list(range(10, 30_000))
    assert [row["data"] for row in rows(api, topic)[:-1]] == [str(i) for i in range(10, 30_000)]
    seen: list[int] = []
    start = 1
    while start <= 30_000:
        page = records(api, topic, f"?limit=10000&from_seq={start}").json
        seen += [record["data"] for record in page["records"]]
        start = page["next_from_seq"]
    assert seen == list(range(10, 30_000))


def test_epoch_of_another_instance_is_a_conflict(api: Api, topic: str) -> None:
    api.append(topic, 1)
    epoch = api.state(topic)["epoch"]
    assert records(api, topic, f"?epoch={epoch}").status == 200
    assert records(api, topic, f"?epoch={epoch + 1}").problem == (409, "recreated")


def test_times_find_records(own: Api, engine: Engine) -> None:
    times = []
    for number in range(4):
        own.append("a", number)
        times.append(own.diff("a", from_seq=number).json["records"][0]["$ts"])
        engine.clock.advance(1000)
        if number == 1:
            own.call("POST", "/v0/admin/checkpoint")
    found = own.call("GET", f"/v0/topics/a/at?ts={times[2]}").json
    assert (found["seq"], found["ts"]) == (3, times[2])
    assert own.call("GET", f"/v0/topics/a/at?ts={times[1] + 1}").json["seq"] == 3
    assert own.call("GET", "/v0/topics/a/at?ts=0").json["seq"] == 1
    beyond = own.call("GET", f"/v0/topics/a/at?ts={times[3] + 1}").json
    assert (beyond["seq"], beyond["ts"]) == (5, None)
    assert own.call("GET", "/v0/topics/a/at").problem == (400, "invalid_request")
    page = own.call("GET", f"/v0/topics/a/records?from_ts={times[1]}&to_ts={times[3]}").json
    assert [record["data"] for record in page["records"]] == [1, 2]
    own.delete("a", before_seq=4)
    assert own.call("GET", "/v0/topics/a/at?ts=0").json["seq"] == 4


def test_tags_are_found_in_seq_order_and_resumable(own: Api, engine: Engine) -> None:
    own.append("a", *({"data": i, "tag": f"t{i % 3}.x"} for i in range(30)))
    own.call("POST", "/v0/admin/checkpoint")
    own.append("a", *({"data": i, "tag": f"t{i % 3}.x"} for i in range(30, 60)))
    own.delete("a", match="t1.x", before_seq=10)
    page = own.call("GET", "/v0/topics/a/tags?match=t1.*&limit=5").json
    assert [record["data"] for record in page["records"]] == [10, 13, 16, 19, 22]
    rest = own.call("GET", f"/v0/topics/a/tags?match=t1.*&from_seq={page['next_from_seq']}").json
    assert [record["data"] for record in rest["records"]] == list(range(25, 60, 3))
    assert len(own.call("GET", "/v0/topics/a/tags?match=*").json["records"]) == 57
    assert own.call("GET", "/v0/topics/a/tags").problem == (400, "invalid_request")
    names = own.call("GET", "/v0/topics/a/tags/names?prefix=t").json["tags"]
    assert names == [{"tag": "t0.x", "count": 20}, {"tag": "t1.x", "count": 17}, {"tag": "t2.x", "count": 20}]


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Engine]:
    """Small segments, so that keys lie in sealed ones, in the open one and in the WAL."""
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(segment_max_events=10, ttl_grace_ms=0))
    yield engine
    engine.close()


def test_newest_record_of_a_key_is_found_wherever_it_lies(keyed: Engine) -> None:
    api = Api(InProcess(keyed))

    def newest(key: str) -> Any:
        answer = api.call("GET", f"/v0/topics/a/keys/{key}").json
        assert (answer["topic"], answer["key"]) == ("a", unquote(key))
        return answer["record"] and answer["record"]["$seq"]

    api.append("a", *({"data": i, "key": f"k{i % 7}", "tag": "t", "meta": {"m": i}} for i in range(1, 36)))
    keyed.pump.checkpoint()
    assert [segment.keys for segment in keyed.store.topics["a"].segments] == [True, True, True, None]
    api.append("a", {"data": 36, "key": "k1"}, {"data": 37}, {"data": 38, "key": "a/é"})
    assert (newest("k1"), newest("k0"), newest("k2"), newest("a%2F%C3%A9")) == (36, 35, 30, 38)
    assert newest("nobody") is None
    record = api.call("GET", "/v0/topics/a/keys/k0").json["record"]
    assert record == {"$seq": 35, "$ts": record["$ts"], "$tag": "t", "$key": "k0", "data": 35, "meta": {"m": 35}}
    assert set(api.call("GET", "/v0/topics/a/keys/k0?include=data").json["record"]) == {"$seq", "$ts", "data"}
    api.delete("a", before_seq=36)
    assert (newest("k1"), newest("k0")) == (36, None)
    assert api.call("GET", "/v0/topics/nobody/keys/k").problem == (404, "topic_not_found")


def test_history_of_a_key_comes_in_seq_order_and_pages(keyed: Engine) -> None:
    api = Api(InProcess(keyed))
    api.append("a", *({"data": i, "key": f"k{i % 3}"} for i in range(1, 41)))
    keyed.pump.checkpoint()
    api.append("a", *({"data": i, "key": f"k{i % 3}"} for i in range(41, 51)))
    api.delete("a", before_seq=3)
    page = api.call("GET", "/v0/topics/a/keys/k1?history=true&limit=10").json
    assert ([r["data"] for r in page["records"]], page["key"]) == (list(range(4, 32, 3)), "k1")
    rest = api.call("GET", f"/v0/topics/a/keys/k1?history=1&from_seq={page['next_from_seq']}").json
    assert ([r["data"] for r in rest["records"]], rest["next_from_seq"]) == (list(range(34, 51, 3)), 51)
    assert [r["data"] for r in records(api, "a", "?key=k1&from_seq=20&to_seq=30").json["records"]] == [22, 25, 28]
    assert api.call("GET", "/v0/topics/a/keys/none?history=true").json["records"] == []


def test_key_is_looked_up_over_every_wire(api: Api, topic: str) -> None:
    api.append(topic, {"data": 1, "key": "k"}, {"data": 2, "key": "k"}, {"data": 3, "key": "a b"})
    assert api.call("GET", f"/v0/topics/{topic}/keys/k").json["record"]["data"] == 2
    assert api.call("GET", f"/v0/topics/{topic}/keys/a%20b").json["record"]["data"] == 3
    history = api.call("GET", f"/v0/topics/{topic}/keys/k?history=true").json
    assert ([r["data"] for r in history["records"]], history["head_seq"]) == ([1, 2], 3)
    assert api.call("GET", f"/v0/topics/{topic}/keys/").problem == (404, "not_found")


def test_filters_by_index_tell_what_was_lost_between(keyed: Engine) -> None:
    api = Api(InProcess(keyed))
    api.put("a", cap_records=20)
    api.append("a", *({"data": i, "key": f"k{i % 2}", "tag": f"t{i % 2}", "node": f"n{i % 4}"} for i in range(1, 41)))
    keyed.pump.checkpoint()
    for query in ("key=k0", "tag=t0", "tag=t0&key=k0"):
        first, *found = records(api, "a", f"?from_seq=1&{query}").json["records"]
        assert (first["tombstone"]["gap_from"], first["tombstone"]["gap_to"]) == (1, 20), query
        assert [r["$seq"] for r in found] == list(range(22, 41, 2)), query
    both = records(api, "a", "?key=k0&node=n2").json["records"]
    assert [r["$seq"] for r in both] == list(range(22, 41, 4))
    assert records(api, "a", "?key=k0&tag=t1").json["records"] == []


@pytest.mark.parametrize("wanted", ["", "&tag=t", "&key=k", "&node=n"])
def test_a_gap_is_told_within_the_asked_range_and_no_further(api: Api, topic: str, wanted: str) -> None:
    api.put(topic, cap_records=10)
    api.append(topic, *({"data": at, "tag": "t", "key": "k", "node": "n"} for at in range(30)))

    def told(asked: str) -> tuple[list[Any], int]:
        page = records(api, topic, asked + wanted).json
        *found, end = lines(api, topic, asked + wanted)
        assert (found, end["end"]["next_from_seq"]) == (page["records"], page["next_from_seq"])
        kinds = [(row["kind"], row["gap_from"], row["gap_to"]) for row in rows(api, topic, asked + wanted)]
        stones = [record["tombstone"] for record in found if "tombstone" in record]
        assert kinds[:-1] == [("gap", stone["gap_from"], stone["gap_to"]) for stone in stones]
        assert all((stone["earliest_seq"], stone["head_seq"]) == (21, 30) for stone in stones)
        return [(stone["gap_from"], stone["gap_to"], stone["missed_estimate"]) for stone in stones], kinds[-1][1]

    assert told("?from_seq=3&to_seq=8") == ([(3, 7, 5)], 8)
    assert told("?from_seq=8&to_seq=21") == ([(8, 20, 13)], 21)
    assert told("?from_seq=8&to_seq=8") == ([], 8)
    assert told("?from_seq=8&to_seq=3") == ([], 8)


def test_damaged_sidecar_of_keys_is_made_again_from_the_records(keyed: Engine) -> None:
    api = Api(InProcess(keyed))
    api.append("a", *({"data": i, "key": f"k{i}"} for i in range(1, 31)))
    keyed.pump.checkpoint()
    first, second, _ = keyed.store.topics["a"].segments
    Path(first.path("keys")).write_bytes(b"rot")
    Path(second.path("keys")).unlink()
    for seq in (3, 13, 23):
        assert api.call("GET", f"/v0/topics/a/keys/k{seq}").json["record"]["$seq"] == seq


def test_segments_tell_what_is_lost_of_the_asked_range(api: Api, topic: str) -> None:
    api.put(topic, cap_records=30)
    api.append(topic, *range(100))
    api.delete(topic, before_seq=75)

    def gaps(asked: str) -> Any:
        return api.call("GET", f"/v0/topics/{topic}/segments{asked}").json["gaps"]

    assert gaps("") == gaps("?from_seq=1") == [[1, 70, "cap"]]
    assert gaps("?from_seq=11&to_seq=21") == [[11, 20, "cap"]]
    assert gaps("?from_seq=71") == gaps("?from_seq=5&to_seq=5") == []  # what was deleted is no loss


def test_segments_list_the_files_and_give_their_bytes(api: Api, topic: str) -> None:
    api.append(topic, *({"data": i} for i in range(100)))
    assert api.call("POST", "/v0/admin/checkpoint").json["done"] is True
    api.append(topic, "later")
    listed = api.call("GET", f"/v0/topics/{topic}/segments").json
    (segment,) = listed["segments"]
    assert (segment["first_seq"], segment["end_seq"], segment["records"], segment["tier"]) == (1, 101, 100, "hot")
    assert listed["tail"] == {"from_seq": 101, "to_seq": 102}
    assert segment["path"].endswith(".data")
    target = f"/v0/topics/{topic}/segments/1/data"
    whole = api.call("GET", target)
    assert (whole.status, len(whole.body)) == (200, segment["parts"]["data"])
    assert whole.headers["etag"] == f'"{listed["topic_id"]}-{segment["generation"]}"'
    part = api.call("GET", target, headers={"range": "bytes=10-19", "if-match": whole.headers["etag"]})
    assert (part.status, part.body) == (206, whole.body[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.body)}"
    assert api.call("GET", target, headers={"range": "bytes=-5"}).body == whole.body[-5:]
    assert api.call("GET", target, headers={"range": "bytes=20-"}).body == whole.body[20:]
    assert api.call("GET", target, headers={"range": "lines=1-2"}).status == 200
    for known, status in ((whole.headers["etag"], 206), ('"0-0"', 200), ("Mon, 16 Nov 2026 12:39:30 GMT", 200)):
        resumed = api.call("GET", target, headers={"range": "bytes=10-19", "if-range": known})
        assert (resumed.status, resumed.body) == (status, whole.body[10:20] if status == 206 else whole.body), known
    beyond = api.call("GET", target, headers={"range": "bytes=9999999-"})
    assert beyond.problem == (416, "range_not_satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{len(whole.body)}"
    assert api.call("GET", target, headers={"if-match": '"0-0"'}).problem == (412, "generation_changed")
    idx = api.call("GET", f"/v0/topics/{topic}/segments/1/idx").body
    assert len(idx) == segment["parts"]["idx"] == 2000
    for gone in ("2/data", "x/data", "1/other"):
        assert api.call("GET", f"/v0/topics/{topic}/segments/{gone}").problem == (404, "segment_gone"), gone
    assert api.call("GET", f"/v0/topics/{topic}/segments?from_seq=101").json["segments"] == []


def test_large_parts_come_in_pieces(api: Api, topic: str) -> None:
    api.append(topic, *({"data": "x" * 1000} for _ in range(2000)), query="?return_seqs=false")
    api.call("POST", "/v0/admin/checkpoint")
    (segment,) = api.call("GET", f"/v0/topics/{topic}/segments").json["segments"]
    whole = api.call("GET", f"/v0/topics/{topic}/segments/1/data")
    assert len(whole.body) == segment["parts"]["data"] > 2_000_000
    part = api.call("GET", f"/v0/topics/{topic}/segments/1/data", headers={"range": "bytes=100-1500099"})
    assert (part.status, part.body) == (206, whole.body[100:1_500_100])


def test_heads_tell_where_topics_stand(api: Api, topic: str) -> None:
    api.append(f"{topic}.a", 1, 22, 333, config={"durability": "fsync"})
    api.append(f"{topic}.b", 1, config={"durability": "ephemeral"})
    answer = api.call("POST", "/v0/heads", {"topics": {f"{topic}.a": 2, f"{topic}.b": 1, "nobody": 1}}).json
    assert set(answer["topics"]) == {f"{topic}.a", f"{topic}.b"}
    row = answer["topics"][f"{topic}.a"]
    assert (row["head_seq"], row["durable_seq"], row["earliest_seq"], row["loss_floor"]) == (3, 3, 1, 1)
    assert row["bytes_ahead"] == 5
    assert answer["topics"][f"{topic}.b"]["durable_seq"] is None
    assert answer["store"] == api.state(f"{topic}.a")["store"]
    assert set(api.call("POST", "/v0/heads", {"pattern": f"{topic}.*"}).json["topics"]) == {f"{topic}.a", f"{topic}.b"}
    assert set(api.call("POST", "/v0/heads", {"pattern": f"{topic}.a"}).json["topics"]) == {f"{topic}.a"}
    assert api.call("POST", "/v0/heads", {}).problem == (400, "invalid_request")


def test_heads_of_too_many_topics_are_refused(own: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"t{number}": 1 for number in range(10_001)}
    refused = own.call("POST", "/v0/heads", {"topics": many})
    assert refused.problem == (400, "invalid_request")
    assert "10000" in refused.json["error"]["message"]
    many.popitem()
    assert own.call("POST", "/v0/heads", {"topics": many}).json["topics"] == {}
    for name in ("p.1", "p.2", "p.3", "q"):
        own.put(name)
    monkeypatch.setattr(limits, "HEADS_TOPICS", 2)
    assert own.call("POST", "/v0/heads", {"pattern": "p.*"}).problem == (400, "invalid_request")
    assert set(own.call("POST", "/v0/heads", {"pattern": "q*"}).json["topics"]) == {"q"}


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("bytes=99999999999999999999-", 416),
        ("bytes=18446744073709551616-99999999999999999999999", 416),
        (f"bytes={'9' * 5000}-", 416),
        ("bytes=0-99999999999999999999", 206),
        ("bytes=-99999999999999999999", 206),
        ("bytes=99999999999999999999-5", 200),
    ],
)
def test_ranges_of_any_length_are_understood(own: Api, engine: Engine, wanted: str, status: int) -> None:
    own.append("a", 1)
    engine.pump.checkpoint()
    answer = own.call("GET", "/v0/topics/a/segments/1/data", headers={"range": wanted})
    assert answer.status == status
    if status == 416:
        assert answer.code == "range_not_satisfiable"
        assert answer.headers["content-range"].startswith("bytes */")


def test_heads_wait_for_a_safe_record(api: Api, topic: str) -> None:
    api.append(topic, 1)
    assert eventually(lambda: api.state(topic)["durable_seq"] == 1)
    started = time.monotonic()
    api.call("POST", "/v0/heads", {"topics": {topic: 2}, "wait_ms": 100})
    assert time.monotonic() - started >= 0.09
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.call, "POST", "/v0/heads", {"topics": {topic: 2}, "wait_ms": 20_000})
        time.sleep(0.1)
        api.append(topic, 2)
        assert waiting.result(10).json["topics"][topic]["durable_seq"] == 2
    assert time.monotonic() - started < 10


def test_durable_seq_follows_the_background_sync(api: Api, topic: str) -> None:
    for durability in ("memory", "disk", "fsync"):
        name = f"{topic}.{durability}"
        api.append(name, 1, 2, config={"durability": durability})
        assert eventually(lambda: api.state(name)["durable_seq"] == 2), durability  # noqa: B023


@pytest.mark.parametrize(
    ("change", "because", "gone"),
    [
        ({"cap_records": 4}, ["cap_records"], 6),
        ({"cap_bytes": 3}, ["cap_bytes"], 7),
        ({"cap_records": 4, "cap_bytes": 3}, ["cap_records", "cap_bytes"], 7),
        ({"cap_records": 10}, [], 0),
        ({}, [], 0),
    ],
)
def test_retention_plan_says_what_would_go(
    api: Api, topic: str, change: dict[str, int], because: list[str], gone: int
) -> None:
    api.append(topic, *([1] * 10))
    plan = api.call("POST", f"/v0/topics/{topic}/retention/plan", change).json
    assert plan["because"] == because
    assert plan["would_remove"]["records"] == plan["would_remove"]["bytes"] == gone
    assert plan["would_remove"]["to_seq"] == (gone or None)
    assert api.state(topic)["count"] == 10
    if change:
        api.call("PATCH", f"/v0/topics/{topic}", change)
        assert api.state(topic)["count"] == 10 - gone


def test_metrics_come_as_text_and_as_json(api: Api, topic: str) -> None:
    api.append(topic, 1, config={"durability": "fsync"})
    text = api.call("GET", "/v0/metrics")
    assert text.headers["content-type"] == "text/plain; version=0.0.4"
    shown = text.body.decode()
    assert f'topics_topic_head_seq{{topic="{topic}"}} 1\n' in shown
    for name in (
        "topics_topics", "topics_routers", "topics_records_live", "topics_bytes_live", "topics_queue_topics",
        "topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions", "topics_ready",
        "topics_recovery_progress", "topics_topic_metrics_truncated", "topics_uptime_ms", "topics_wal_frames_total",
        "topics_wal_batches_total", "topics_wal_fsyncs_total", "topics_wal_bytes_written_total",
        "topics_wal_rotations_total", "topics_wal_submit_full_total", "topics_wal_queue_depth",
        "topics_wal_queue_depth_peak", "topics_wal_read_only", 'topics_topics_by_class{class="fsync"}',
        'topics_wal_fsync_latency_us_bucket{le="+Inf"}', 'topics_wal_fsync_latency_us_bucket{le="50"}',
    ):  # fmt: skip
        assert f"\n{name} " in f"\n{shown}", name
    numbers = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json
    assert set(numbers) >= {
        "topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live",
        "bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready",
        "replay_progress", "uptime_ms", "wal",
    }  # fmt: skip
    assert numbers["ready"] is True
    assert numbers["wal"]["fsync_count"] > 0
    assert numbers["wal"]["frames"] > 0
