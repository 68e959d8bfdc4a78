"""What a watch sends, frame by frame, over real sockets."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Event, Place

GOLDEN = """\
retry: 2000

id: eyJhIjo1LCJiIjowfQ
event: tombstone
data: {"earliest_seq":6,"gap_from":1,"gap_to":5,"head_seq":7,"reason":"from_seq_too_old","topic":"a"}

id: eyJhIjo3LCJiIjowfQ
event: record
data: {"topic":"a","from_seq":0,"head_seq":7,"records":[{"$node":"n","$seq":6,"$ts":0,"data":{"x":1},"meta":{"m":1}},{"$seq":7,"$tag":"t","$ts":0,"data":2}],"to_seq":7}

id: eyJhIjo3LCJiIjowfQ
event: caught-up
data: {"head_seq":7,"topic":"a"}

id: eyJhIjo3LCJiIjowfQ
event: caught-up
data: {"head_seq":0,"topic":"b"}

: : hb

id: eyJhIjo3LCJiIjowfQ
event: topic-deleted
data: {"head_seq":0,"reason":"deleted","topic":"b"}

id: eyJhIjo3LCJiIjowfQ
event: error
data: {"code":"server_shutting_down","message":"…"}

"""  # noqa: E501


def sorted_record(record: str) -> str:
    """With its own keys in order: their order carries no meaning. Times are 0."""
    value = json.loads(record)
    value["$ts"] = 0
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def normal(events: list[Event]) -> str:
    """A stream as text, without what differs from run to run."""
    texts = []
    for event in events:
        text = event.text
        if event.event == "record":
            inner = [sorted_record(json.dumps(record)) for record in event.data["records"]]
            text = re.sub(r'"records":\[.*\]', lambda _, inner=inner: f'"records":[{",".join(inner)}]', text)  # type: ignore[misc]
        elif event.event == "error":
            text = re.sub(r'"message":"[^"]+"', '"message":"…"', text)
        texts.append(f"id: {event.id}\nevent: {event.event}\ndata: {text}\n\n" if event.event else f"{text}\n\n")
    return "".join(texts)


def test_whole_stream_is_byte_for_byte_as_agreed(tmp_path: Path) -> None:
    place = Place(ServerProcess(tmp_path, TOPICS_TEST_MIN_HEARTBEAT_MS="300"))
    api = place.api
    api.put("a", cap_records=2)
    api.put("b")
    api.append("a", 1, 2, 3, 4, 5)
    api.append("a", {"data": {"x": 1}, "node": "n", "meta": {"m": 1}}, {"data": 2, "tag": "t"})
    reader = place.watch({"a": {}, "b": {}}, include_tags=True, heartbeat_ms=300)
    assert reader.headers["content-type"] == "text/event-stream"
    assert reader.headers["cache-control"] == "no-store"
    assert reader.headers["x-accel-buffering"] == "no"
    events: list[Event] = []
    while not events or events[-1].text != ": : hb":
        event = reader.next()
        assert event is not None
        events.append(event)
    api.call("DELETE", "/v0/topics/b")
    events.append(reader.until("topic-deleted"))
    place.close()
    status, _, complaints = place.server.stop()
    events += [event for event in reader.rest() if event.event]
    assert normal(events) == GOLDEN
    assert (status, complaints) == (0, "")
    reader.close()


def test_backlog_is_one_frame_and_live_records_follow(place: Place) -> None:
    place.api.append("backlog", 1, 2)
    with place.watch({"backlog": {}}) as reader:
        first = reader.named()
        assert (first.event, first.seqs) == ("record", [1, 2])
        assert reader.named().event == "caught-up"
        place.api.append("backlog", 3)
        assert [reader.named().event, reader.named().event] == ["record", "caught-up"]
    with place.read(place.session({"backlog": {}}), f"last-event-id: {first.id}") as again:
        assert list(again.records(3)) == [1, 2, 3], "an id never raises what a fresh session stands at"


def test_tail_begins_at_the_head(place: Place) -> None:
    place.api.append("tail", 1, 2)
    with place.watch({"tail": {"tail": True}}) as reader:
        assert reader.named().event == "caught-up"
        place.api.append("tail", 3)
        assert reader.named().seqs == [3]


def test_cursor_beyond_an_empty_topic_goes_on_from_its_first_record(place: Place) -> None:
    place.api.put("anew")
    with place.watch({"anew": {"from_seq": 9}}) as reader:
        told = reader.named()
        assert (told.event, told.data["reason"]) == ("tombstone", "from_seq_too_old")
        assert (told.data["gap_from"], told.data["gap_to"], told.data["earliest_seq"]) == (1, 0, 1)
        assert reader.named().event == "caught-up"
        place.api.append("anew", 1, 2)
        assert reader.named().seqs == [1, 2]


def test_large_backlog_comes_in_frames_of_the_limit_in_name_order(place: Place) -> None:
    for name in ("order-b", "order-a"):
        place.api.append(name, *range(25))
    with place.watch({"order-b": {}, "order-a": {}}, limit=10) as reader:
        seen = [reader.named() for _ in range(8)]
    assert [event.event for event in seen] == (["record"] * 3 + ["caught-up"]) * 2
    assert [event.data["topic"] for event in seen] == ["order-a"] * 4 + ["order-b"] * 4
    assert [len(event.seqs) for event in seen if event.event == "record"] == [10, 10, 5] * 2


def test_filtered_burst_is_silent_and_moves_the_cursor(place: Place) -> None:
    place.api.append("filtered", {"data": 1, "node": "me"})
    url = place.session({"filtered": {}}, node=["me", "other"])
    with place.read(url) as reader:
        assert reader.named().event == "caught-up"
        place.api.append("filtered", {"data": 2, "node": "me"})
        place.api.append("filtered", {"data": 3, "node": "you"})
        event = reader.named()
        assert (event.event, event.seqs, event.data["to_seq"]) == ("record", [3], 3)


def test_include_flags_choose_what_is_sent(place: Place) -> None:
    place.api.append("flags", {"data": 1, "tag": "t", "key": "k", "node": "n", "meta": {"m": 1}})
    with place.watch({"flags": {}}, include_data=False, include_meta=False) as reader:
        (record,) = reader.named().data["records"]
        assert sorted(record) == ["$node", "$seq", "$ts"]
    with place.watch({"flags": {}}, include_tags=True) as reader:
        (record,) = reader.named().data["records"]
        assert sorted(record) == ["$node", "$seq", "$tag", "$ts", "data", "meta"]
    with place.watch({"flags": {}}, include_keys=True) as reader:
        (record,) = reader.named().data["records"]
        assert (sorted(record), record["$key"]) == (["$key", "$node", "$seq", "$ts", "data", "meta"], "k")


def test_strong_consistency_gives_what_is_safe_and_all_of_it(place: Place) -> None:
    place.api.put("strong", durability="disk")
    with place.watch({"strong": {}}, consistency="strong") as reader:
        reader.until("caught-up")
        for number in range(1, 6):
            place.api.append("strong", number)
            assert list(reader.records(number)) == [number]
            state = place.api.state("strong")
            assert state["durable_seq"] >= number


def test_dropped_topic_ends_its_part_at_once_even_if_made_again(place: Place) -> None:
    place.api.append("phoenix", 1, 2)
    place.api.append("stays", 1)
    url = place.session({"phoenix": {}, "stays": {}}, heartbeat_ms=60_000)
    with place.read(url) as reader:
        reader.until("caught-up")
        reader.until("caught-up")
        place.api.call("DELETE", "/v0/topics/phoenix")
        assert reader.named().data == {"topic": "phoenix", "head_seq": 0, "reason": "deleted"}
        place.api.append("phoenix", "new")
        place.api.append("stays", 2)
        event = reader.named()
        assert (event.data["topic"], event.seqs) == ("stays", [2])
    with place.read(url) as reader:
        gap, record = reader.named(), reader.named()
        assert (gap.event, gap.data["topic"]) == ("tombstone", "phoenix"), "the old cursor means nothing any more"
        assert (record.event, record.seqs) == ("record", [1])
    place.api.call("DELETE", "/v0/topics/phoenix")
    place.api.call("DELETE", "/v0/topics/stays")
    with place.read(url) as reader:
        assert [event.event for event in reader.rest()] == ["", "topic-deleted", "topic-deleted"]


def test_evicted_records_are_told_while_live(place: Place) -> None:
    place.api.put("capped", cap_records=3)
    with place.watch({"capped": {}}, limit=1) as reader:
        reader.until("caught-up")
        place.api.append("capped", *range(10))
        event = reader.named()
        assert (event.event, event.data["reason"]) == ("tombstone", "cap")
        assert (event.data["gap_from"], event.data["gap_to"]) == (1, 7)
        assert list(reader.records(10)) == [8, 9, 10]


def test_expired_records_are_never_delivered(place: Place) -> None:
    place.api.put("short", ttl_ms=1)
    place.api.append("short", 1, 2)
    with place.watch({"short": {}}) as reader:
        seen = [reader.named()]
        while seen[-1].event != "caught-up":
            seen.append(reader.named())
    assert [event.event for event in seen if event.event != "tombstone"] in (["caught-up"], ["record", "caught-up"])


def test_copies_of_a_router_arrive_like_any_record(place: Place) -> None:
    place.api.append("routed", 1)
    place.api.call("PUT", "/v0/routers/watched-router", {"source": "routed", "dest": "routed.copy"})
    with place.watch({"routed.copy": {}}) as reader:
        place.api.append("routed", 2)
        place.api.append("routed", 3)
        assert list(reader.records(2)) == [1, 2]


def test_metrics_count_streams_and_sessions(place: Place) -> None:
    place.api.append("counted", 1)
    before = place.metrics()
    with place.watch({"counted": {}}) as reader:
        reader.until("caught-up")
        after = place.metrics()
    assert after["sse_connections"] == before["sse_connections"] + 1
    assert after["watch_sessions"] == before["watch_sessions"] + 1
