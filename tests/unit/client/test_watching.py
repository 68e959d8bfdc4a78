"""A watch without a server: what it asks for, what it makes of the bytes that come, where it goes on."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.client.watching import Watch, Watched, WatchPlace, WatchSession
from topics.model.errors import BadAnswer, InvalidRequest
from topics.model.record import Gap, Record


def event_id(cursors: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(dict(cursors), separators=(",", ":")).encode()).decode().rstrip("=")


def event(kind: str, data: Any, **cursors: int) -> bytes:
    return f"id: {event_id(cursors)}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def records(topic: str, *seqs: int, **cursors: int) -> bytes:
    data = {"topic": topic, "records": [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs], "to_seq": seqs[-1]}
    return event("record", data, **cursors)


def opened(watch: Watch, **places: int) -> Watch:
    topics = {name: WatchPlace(seq, seq, 1) for name, seq in places.items()}
    watch.opened(WatchSession("wid_x", "/v0/watch/wid_x", topics))
    return watch


def body(watch: Watch) -> Any:
    return json.loads(watch.open_session().request.body or b"")


def seqs(items: list[Watched]) -> list[tuple[str, int]]:
    return [(topic, item.seq) for topic, item in items if isinstance(item, Record)]


def test_topics_are_given_as_a_name_as_names_or_with_cursors() -> None:
    assert body(Watch("a"))["topics"] == {"a": {"from_seq": 0}}
    assert body(Watch(["a", "b"], tail=True))["topics"] == {"a": {"tail": True}, "b": {"tail": True}}
    assert body(Watch({"a": 7, "b": None}))["topics"] == {"a": {"from_seq": 7}, "b": {"tail": True}}
    with pytest.raises(InvalidRequest):
        Watch([])


STREAM = b"".join((
    b"retry: 2000\n\n",
    event("tombstone", {"topic": "a", "gap_from": 1, "gap_to": 5, "reason": "cap"}, a=5, b=0),
    records("a", 6, 7, a=7, b=0),
    event("caught-up", {"topic": "a", "head_seq": 7}, a=7, b=0),
    b": : hb\n\n",
    event("topic-deleted", {"topic": "b", "head_seq": 0, "reason": "deleted"}, a=7, b=0),
    records("a", 8, a=8, b=0),
))  # fmt: skip


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_stream_may_be_cut_into_pieces_anywhere(cuts: list[int]) -> None:
    watch = opened(Watch(["a", "b"]), a=0, b=0)
    edges = [0, *sorted(cuts), len(STREAM)]
    items = [item for low, high in itertools.pairwise(edges) for item in watch.feed(STREAM[low:high])]
    assert items[0] == Watched("a", Gap(1, 5, "cap"))
    assert seqs(items) == [("a", 6), ("a", 7), ("a", 8)]
    assert watch.cursors == {"a": 8}


def test_same_session_goes_on_with_the_last_id() -> None:
    watch = opened(Watch("a"), a=0)
    assert "last-event-id" not in watch.open_stream().headers
    watch.feed(records("a", 1, 2, a=2) + b"id: half")
    request = watch.open_stream()
    assert (request.target, request.headers["last-event-id"]) == ("/v0/watch/wid_x", event_id({"a": 2}))
    assert seqs(watch.feed(records("a", 3, a=3))) == [("a", 3)], "half an event of the old stream is forgotten"


def test_new_session_begins_at_the_cursors_and_takes_absent_topics_for_dropped() -> None:
    watch = opened(Watch({"a": None, "b": 4, "c": 0}), a=9, b=4, c=0)
    watch.feed(records("b", 5, a=9, b=5, c=0))
    watch.forget_session()
    call = watch.open_session()
    assert call.request.target == "/v0/watch?lenient=true"
    assert body(watch)["topics"] == {"a": {"from_seq": 9}, "b": {"from_seq": 5}, "c": {"from_seq": 0}}
    opened(watch, a=9, b=5)
    assert watch.cursors == {"a": 9, "b": 5}
    assert "last-event-id" not in watch.open_stream().headers


def test_watch_is_done_when_its_last_topic_is_gone() -> None:
    watch = opened(Watch("a"), a=0)
    watch.feed(event("topic-deleted", {"topic": "a", "head_seq": 0, "reason": "deleted"}, a=0))
    assert watch.done


def test_pauses_grow_until_something_comes() -> None:
    watch = opened(Watch("a"), a=0)
    pauses = [watch.pause_s(0.1, 1.0, lambda: 1.0) for _ in range(7)]
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    watch.feed(records("a", 1, a=1))
    assert watch.pause_s(0.1, 1.0, lambda: 1.0) == 0.0


def test_a_watch_may_fail_for_hours() -> None:
    watch = opened(Watch("a"), a=0)
    assert [watch.pause_s(0.1, 1.0, lambda: 1.0) for _ in range(5000)][-1] == 1.0


def test_an_answer_that_is_no_stream_of_events_is_said_so() -> None:
    watch = opened(Watch("a"), a=0)
    watch.begin({"content-type": "text/event-stream"})
    with pytest.raises(BadAnswer, match="text/html"):
        watch.begin({"content-type": "text/html; charset=utf-8"})


def test_what_is_no_event_of_ours_is_said_so() -> None:
    with pytest.raises(BadAnswer):
        opened(Watch("a"), a=0).feed(b"id: x\nevent: record\ndata: {\n\n")
