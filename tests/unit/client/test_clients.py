"""What both clients do with a server that answers well, late, badly or not at all."""

from __future__ import annotations

import itertools
import json
import socket
from typing import Any

import pytest

from tests.unit.client.conftest import Connect
from tests.unit.client.server import FakeServer, answer, chunks, half, hang_up, problem
from topics.client import RetryPolicy
from topics.client.lines import ARROW_END
from topics.model.errors import (
    BadAnswer,
    Forbidden,
    InvalidRequest,
    NotReady,
    StreamCut,
    Throttled,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from topics.model.record import Gap, Record

APPENDED = {"topic": "a", "first_seq": 1, "last_seq": 2, "head_seq": 2, "count": 2, "created": True, "deduped": False}
HEALTH = {"status": "ok", "version": "1", "uptime_ms": 5}
PLACES = {"a": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1}}
SESSION = answer(200, {"wid": "wid_x", "stream_url": "/v0/watch/wid_x", "topics": PLACES})
QUICK = RetryPolicy(deadline_s=0.3, attempts_max=3)


def diff(*seqs: int, head: int, gap: Any = None) -> dict[str, Any]:
    last = max(seqs, default=head)
    return {
        "topic": "a",
        "records": [{"$seq": seq, "$ts": 7, "$tag": "t", "data": {"n": seq}, "meta": [1]} for seq in seqs],
        "next_from_seq": last,
        "head_seq": head,
        "earliest_seq": 1,
        "caught_up": last == head,
        "tombstone": gap,
        "lag": head - last,
        "performance": {"server_total_ms": 0.1},
    }


def test_append_sends_records_and_a_key_of_its_own(connect: Connect) -> None:
    with FakeServer(answer(201, APPENDED), answer(200, APPENDED)) as server:
        client = connect(server.url, token="hush")
        done = client.append("a", [{"data": {"x": 1}, "tag": "t"}, {"data": b"1.10", "key": None}], node="n")
        client.append("a", [{"data": None}])
    assert (done.first_seq, done.last_seq, done.created) == (1, 2, True)
    first, second = server.seen
    assert (first.method, first.target) == ("POST", "/v0/topics/a?return_seqs=false")
    assert first.headers["authorization"] == "Bearer hush"
    assert first.headers["content-type"] == "application/json"
    assert b"1.10" in first.body
    assert first.json["records"] == [{"data": {"x": 1}, "tag": "t"}, {"data": 1.1}]
    assert first.json["node"] == "n"
    assert first.json["idempotency_key"] != second.json["idempotency_key"]


def test_append_without_answer_is_repeated_with_the_same_key(connect: Connect) -> None:
    with FakeServer(hang_up, answer(200, APPENDED)) as server:
        assert connect(server.url).append("a", [{"data": 1}]).count == 2
    assert server.seen[0].body == server.seen[1].body
    assert len(connect.pauses) == 1


@pytest.mark.parametrize("step", [hang_up, problem(503, "not_ready"), problem(429, "throttled")])
def test_append_without_a_key_is_never_repeated(connect: Connect, step: Any) -> None:
    with FakeServer(step, answer(200, APPENDED)) as server, pytest.raises(Unavailable):
        connect(server.url).append("a", [{"data": 1}], idempotent=False)
    assert len(server.seen) == 1
    assert "idempotency_key" not in server.seen[0].json


def test_delete_by_tag_alone_is_not_repeated_but_a_bounded_one_is(connect: Connect) -> None:
    done = {"topic": "a", "deleted": 1, "earliest_seq": 2, "head_seq": 3, "count": 2, "bytes": 9}
    with FakeServer(hang_up, hang_up, answer(200, done)) as server:
        with pytest.raises(Unreachable):
            connect(server.url).delete("a", tag="x*")
        assert connect(server.url).delete("a", tag="x", before_seq=9).deleted == 1
    assert server.seen[0].json == {"match": ["tag", "Glob", "x*"]}
    assert server.seen[2].json == {"match": ["tag", "Eq", "x"], "before_seq": 9}


def test_retry_after_is_obeyed(connect: Connect) -> None:
    slow = problem(429, "throttled", {"limit": "max_topics", "max": 1}, {"Retry-After": "2"})
    with FakeServer(slow, problem(503, "not_ready", None, {"Retry-After": "1"}), answer(200, HEALTH)) as server:
        assert connect(server.url).health().status == "ok"
    first, second = connect.pauses
    assert 2 <= first <= 2.1
    assert 1 <= second <= 1.2


def test_retry_after_beyond_the_deadline_gives_the_error_at_once(connect: Connect) -> None:
    later = problem(429, "throttled", {"limit": "max_topics"}, {"Retry-After": "60"})
    with FakeServer(later) as server, pytest.raises(Throttled) as caught:
        connect(server.url).health()
    assert caught.value.limit == "max_topics"
    assert caught.value.retry_after_s == 60
    assert not connect.pauses


def test_tries_end_with_the_last_error(connect: Connect) -> None:
    with FakeServer(*[problem(503, "read_only", {"shard": 1})] * 9) as server, pytest.raises(Unavailable) as caught:
        connect(server.url, retry=RetryPolicy(attempts_max=4)).health()
    assert caught.value.code == "read_only"
    assert len(server.seen) == 4


def test_a_session_that_is_never_there_is_asked_for_ever_more_slowly(connect: Connect) -> None:
    script = [*[SESSION, problem(404, "not_found")] * 4, problem(403, "forbidden")]
    with FakeServer(*script) as server, pytest.raises(Forbidden):
        list(connect(server.url).watch("a"))
    assert connect.pauses[0] == 0.0
    assert all(connect.pauses[1:4])


def test_a_watch_that_is_answered_with_a_page_ends(connect: Connect) -> None:
    page = answer(200, b"<html>log in</html>", {"Content-Type": "text/html"})
    with FakeServer(SESSION, page) as server, pytest.raises(BadAnswer, match="text/html"):
        list(connect(server.url).watch("a"))


def test_other_errors_are_not_repeated(connect: Connect) -> None:
    with FakeServer(problem(404, "topic_not_found", {"topic": "a"}), problem(500, "internal")) as server:
        client = connect(server.url)
        with pytest.raises(TopicNotFound, match="because of") as caught:
            client.info("a")
        assert caught.value.topic == "a"
        with pytest.raises(Exception, match="internal"):
            client.info("a")
    assert len(server.seen) == 2


def test_readiness_is_asked_once(connect: Connect) -> None:
    later = problem(503, "not_ready", {"replay_progress": 0.5}, {"Retry-After": "1"})
    with FakeServer(later) as server, pytest.raises(NotReady) as caught:
        connect(server.url).ready()
    assert caught.value.replay_progress == 0.5
    assert not connect.pauses


def test_nobody_listening_is_unreachable(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        connect(f"http://127.0.0.1:{port}", retry=QUICK).health()
    assert len(connect.pauses) == 2


def test_silence_ends_at_the_deadline(connect: Connect) -> None:
    with FakeServer() as server:
        server.script = [server.silence] * 3
        with pytest.raises(Unreachable):
            connect(server.url, retry=RetryPolicy(deadline_s=0.15, attempts_max=1)).health()


def test_long_poll_gets_its_wait_on_top_of_the_deadline(connect: Connect) -> None:
    def late(connection: socket.socket) -> bool:
        server.stopped.wait(0.3)
        return answer(200, diff(head=0))(connection)

    with FakeServer(late) as server:
        batch = connect(server.url, retry=RetryPolicy(deadline_s=0.1, attempts_max=1)).diff("a", wait_ms=2_000)
    assert batch.caught_up
    assert server.seen[0].json["wait_ms"] == 2_000


def test_short_body_is_an_error_and_is_asked_again(connect: Connect) -> None:
    with FakeServer(half(b'{"status"', 60), answer(200, HEALTH)) as server:
        assert connect(server.url).health().version == "1"
    assert len(server.seen) == 2


def test_diff_gives_records_and_the_gap_before_them(connect: Connect) -> None:
    gap = {"gap_from": 1, "gap_to": 3, "reason": "cap", "missed_estimate": 3, "earliest_seq": 4, "head_seq": 9}
    with FakeServer(answer(200, diff(4, 5, head=9, gap=gap))) as server:
        batch = connect(server.url).diff("a", 0, limit=2, node=["n"], epoch=7)
    assert list(batch.items()) == [
        Gap(1, 3, "cap"),
        Record(4, 7, "t", None, None, b"[1]", b'{"n": 4}'),
        Record(5, 7, "t", None, None, b"[1]", b'{"n": 5}'),
    ]
    assert (batch.next_from_seq, batch.lag, batch.caught_up) == (5, 4, False)
    sent = server.seen[0].json
    assert (sent["limit"], sent["node"], sent["epoch"], sent["include_tags"]) == (2, ["n"], 7, True)
    assert "wait_ms" not in sent


def test_read_goes_on_until_the_head(connect: Connect) -> None:
    with FakeServer(answer(200, diff(1, 2, head=3)), answer(200, diff(3, head=3))) as server:
        seqs = [item.seq for item in connect(server.url).read("a") if isinstance(item, Record)]
    assert seqs == [1, 2, 3]
    assert [request.json["from_seq"] for request in server.seen] == [0, 2]


def test_read_that_follows_waits_for_more(connect: Connect) -> None:
    with FakeServer(answer(200, diff(1, head=1)), answer(200, diff(head=1)), answer(200, diff(2, head=2))) as server:
        items = list(itertools.islice(connect(server.url).read("a", follow=True), 2))
    assert [item.seq for item in items if isinstance(item, Record)] == [1, 2]
    assert all(request.json["wait_ms"] == 30_000 for request in server.seen)


def test_lists_go_through_all_pages(connect: Connect) -> None:
    one = {"topic": "a", "head_seq": 1, "earliest_seq": 1, "count": 1, "bytes": 2, "durable": False}
    pages = [
        answer(200, {"topics": [one], "next_cursor": "x+/="}),
        answer(200, {"topics": [{**one, "topic": "b"}]}),
        answer(200, {"routers": [{"router": "a->b", "source": "a", "dest": "b"}]}),
    ]
    with FakeServer(*pages) as server:
        client = connect(server.url)
        assert [topic.topic for topic in client.topics("p")] == ["a", "b"]
        assert [router.dest for router in client.routers(source="a")] == ["b"]
    assert server.seen[1].target == "/v0/topics?prefix=p&page_size=1000&cursor=x%2B%2F%3D"


def test_router_names_are_sent_encoded_once(connect: Connect) -> None:
    with FakeServer(answer(201, {"router": "a->b", "source": "a", "dest": "b", "created": True})) as server:
        assert connect(server.url).create_router("a->b", "a", "b", preserve_tag=False).created
    assert server.seen[0].target == "/v0/routers/a-%3Eb"
    assert server.seen[0].json == {"source": "a", "dest": "b", "preserve_tag": False}


LINES = (
    b'{"$seq":4,"$ts":7,"data":"a\\nb"}\n'
    b'{"tombstone":{"gap_from":5,"gap_to":8,"reason":"ttl"}}\n'
    b'{"$seq":9,"$ts":8,"data":1}\n'
)
END = b'{"end":{"next_from_seq":10,"head_seq":9}}\n'


def test_history_streams_records_and_gaps(connect: Connect) -> None:
    whole = LINES + END
    with FakeServer(chunks(*(whole[at : at + 7] for at in range(0, len(whole), 7)))) as server:
        items = list(connect(server.url).records("a", from_seq=4, tag="x*", include=["data"]))
    assert items == [
        Record(4, 7, None, None, None, None, b'"a\\nb"'),
        Gap(5, 8, "ttl"),
        Record(9, 8, None, None, None, None, b"1"),
    ]
    assert server.seen[0].target == "/v0/topics/a/records?from_seq=4&tag=x%2A&include=data"
    assert server.seen[0].headers["accept"] == "application/x-ndjson"


@pytest.mark.parametrize("end", [True, False], ids=["regular-end", "broken-connection"])
def test_cut_history_is_noticed_and_says_where_to_go_on(connect: Connect, end: bool) -> None:
    with FakeServer(chunks(LINES, b'{"$seq":10,"$t', end=end)) as server:
        stream = connect(server.url).records("a")
        seen: list[Record | Gap] = []
        with pytest.raises(StreamCut) as caught:
            seen.extend(stream)
    # What had arrived when the connection broke may be dropped by the library; the cursor tells what was handed out.
    assert len(seen) == 3 or (not end and not seen)
    assert caught.value.next_from_seq == (10 if seen else None)


@pytest.mark.parametrize(("tail", "whole"), [(ARROW_END, True), (b"", False), (ARROW_END[:4], False)])
def test_arrow_stream_without_its_end_mark_was_cut(connect: Connect, tail: bytes, whole: bool) -> None:
    with FakeServer(chunks(b"arrow", b"bytes", *(tail[at : at + 3] for at in range(0, len(tail), 3)))) as server:
        stream = connect(server.url).records_arrow("a")
        if whole:
            assert b"".join(stream) == b"arrowbytes" + ARROW_END
        else:
            with pytest.raises(StreamCut):
                list(stream)
    assert server.seen[0].headers["accept"] == "application/vnd.apache.arrow.stream"


def test_stream_is_opened_again_while_the_server_says_later(connect: Connect) -> None:
    with FakeServer(problem(503, "not_ready"), hang_up, chunks(END)) as server:
        assert list(connect(server.url).records("a")) == []
    assert len(server.seen) == 3


def test_stream_left_early_does_not_disturb_the_next_call(connect: Connect) -> None:
    with FakeServer(chunks(LINES, LINES), answer(200, HEALTH)) as server:
        client = connect(server.url)
        stream = client.records("a")
        assert next(iter(stream)) is not None
        stream.close()
        assert client.health().status == "ok"


def test_bulk_bodies_are_sent_as_they_are(connect: Connect) -> None:
    with FakeServer(*[answer(200, APPENDED)] * 2) as server:
        client = connect(server.url)
        client.append_ndjson("a", b'{"data":1}\n', idempotency_key="k 1", create=False)
        client.append_arrow("a", b"ARROW", idempotent=False, node="n")
    ndjson, arrow = server.seen
    assert ndjson.target == "/v0/topics/a?idempotency_key=k%201&create=false&return_seqs=false"
    assert (ndjson.headers["content-type"], ndjson.body) == ("application/x-ndjson", b'{"data":1}\n')
    assert arrow.target == "/v0/topics/a?node=n&return_seqs=false"
    assert (arrow.headers["content-type"], arrow.body) == ("application/vnd.apache.arrow.stream", b"ARROW")


def test_part_of_a_segment_is_asked_for_by_range(connect: Connect) -> None:
    tagged = {"ETag": '"1-2"', "Content-Range": "bytes 2-4/10"}
    with FakeServer(answer(206, b"cde", tagged), answer(200, b"abcdefghij"), answer(206, b"cd", tagged)) as server:
        client = connect(server.url)
        part = client.segment_part("a", 1, "data", start=2, end=5, if_match='"1-2"')
        assert (part.data, part.start, part.size, part.etag) == (b"cde", 2, 10, '"1-2"')
        assert client.segment_part("a", 1, "data", start=2, end=5).data == b"cde"
        with pytest.raises(BadAnswer, match="asked for"):
            client.segment_part("a", 1, "data", start=2, end=5)
    assert server.seen[0].headers["range"] == "bytes=2-4"
    assert server.seen[0].headers["if-match"] == '"1-2"'


def test_remaining_calls_reach_their_paths(connect: Connect) -> None:
    config = {"topic": "a", "created": False, "config": {"durability": "fsync", "new_field": 1}}
    state = {"topic": "a", "head_seq": 2, "earliest_seq": 1, "next_seq": 3, "count": 2, "bytes": 5, "config": {}}
    segment = {
        "first_seq": 1, "end_seq": 3, "records": 2, "bytes": 5, "tier": "hot", "sealed": True, "generation": 1,
        "parts": {"data": 9}, "deleted": [[1, 2]],
    }  # fmt: skip
    listing = {
        "topic": "a", "topic_id": 4, "epoch": 1, "head_seq": 2, "earliest_seq": 1, "segments": [segment],
        "tail": {"from_seq": 3, "to_seq": 3},
    }  # fmt: skip
    steps = [
        (answer(200, config), lambda c: c.create("a", ttl_ms=1).config.durability, "fsync", "PUT /v0/topics/a"),
        (answer(200, config), lambda c: c.configure("a", ttl_ms=1).created, False, "PATCH /v0/topics/a"),
        (answer(200, state), lambda c: c.info("a", touch=False).next_seq, 3, "GET /v0/topics/a?touch=false"),
        (answer(200, {"topic": "a", "deleted": True, "routers_removed": ["r"]}), lambda c: c.drop("a").deleted, True,
         "DELETE /v0/topics/a"),
        (answer(200, {"topics": {"a": {"epoch": 1, "head_seq": 2, "earliest_seq": 1}}}),
         lambda c: c.heads({"a": 1}, wait_ms=5).topics["a"].head_seq, 2, "POST /v0/heads"),
        (answer(200, listing), lambda c: c.segments("a", from_seq=1).segments[0].deleted, [(1, 2)],
         "GET /v0/topics/a/segments?from_seq=1"),
        (answer(200, {"router": "r", "source": "a", "dest": "b"}), lambda c: c.router("r").dest, "b",
         "GET /v0/routers/r"),
        (answer(200, {"router": "r", "deleted": False}), lambda c: c.drop_router("r").deleted, False,
         "DELETE /v0/routers/r"),
        (answer(200, {"status": "ready", "topics": 3}), lambda c: c.ready().topics, 3, "GET /v0/ready"),
        (answer(200, b"# text\n"), lambda c: c.metrics(), "# text\n", "GET /v0/metrics"),
        (answer(200, {"topics": 3}), lambda c: c.metrics_json(), {"topics": 3}, "GET /v0/metrics"),
        (answer(200, {"topics": 3}), lambda c: c.stats("a", 5), {"topics": 3}, "GET /v0/stats?prefix=a&limit=5"),
        (answer(200, {"topic": "a", "key": "k", "record": {"$seq": 3, "$ts": 1, "data": 7}}),
         lambda c: c.latest("a", "k").data, 7, "GET /v0/topics/a/keys/k"),
        (answer(200, {"topic": "a", "key": "k", "record": None}), lambda c: c.latest("a", "x/y"), None,
         "GET /v0/topics/a/keys/x%2Fy"),
        (answer(200, {"records": [], "next_from_seq": 4, "head_seq": 3}),
         lambda c: c.key_history("a", "k", limit=2).next_from_seq, 4, "GET /v0/topics/a/keys/k?history=true&limit=2"),
        (answer(200, {"openapi": "3.1.0"}), lambda c: c.openapi()["openapi"], "3.1.0", "GET /openapi.json"),
        (answer(200, {"records": [], "next_from_seq": 4, "head_seq": 3}),
         lambda c: c.records_page("a", limit=2).next_from_seq, 4,
         "GET /v0/topics/a/records?limit=2&include=tags%2Cmeta%2Ckeys%2Cdata"),
    ]  # fmt: skip
    with FakeServer(*(step for step, *_ in steps)) as server:
        client = connect(server.url)
        for number, (_, ask, expected, line) in enumerate(steps):
            assert ask(client) == expected  # type: ignore[no-untyped-call]
            assert f"{server.seen[number].method} {server.seen[number].target}" == line


def test_staged_calls_reach_their_paths_and_may_be_repeated(connect: Connect) -> None:
    part = {"txn": "app@1", "part": "p0", "count": 1, "bytes": 9}
    done = {"txn": "app@1", "first_seq": 4, "last_seq": 4, "count": 1, "repeated": False}
    page = {"staged": [{"txn": "t", "state": "open", "parts": []}], "next_cursor": "c"}
    last = {"staged": [{"txn": "u", "state": "committed", "first_seq": 1, "last_seq": 2, "count": 2}]}
    place = "/v0/topics/a/staged"
    with FakeServer(
        answer(503, {"error": {"code": "unavailable", "message": "later"}}), answer(201, part), answer(201, part),
        answer(201, part), answer(200, done),
        answer(200, {"txn": "t", "topics": {"a": {"first_seq": None, "last_seq": None, "count": 0}}, "repeated": True}),
        answer(200, page), answer(200, last), answer(200, last["staged"][0]),
        answer(200, {"txn": "t", "aborted": False, "state": "committed"}),
    ) as server:  # fmt: skip
        client = connect(server.url)
        assert client.stage("a", "app@1", "p0", [{"data": 1}], node="n", create=False).count == 1
        assert client.stage_ndjson("a", "app@1", "p0", b'{"data":1}').part == "p0"
        assert client.stage_arrow("a", "app@1", "p0", b"arrow", create=True).bytes == 9
        assert client.commit_staged("a", "app@1", ["p0"], query="q").first_seq == 4
        assert client.commit_staged_topics("t", {"a": []}).topics["a"].first_seq is None
        assert [txn.txn for txn in client.staged("a", prefix="x")] == ["t", "u"]
        assert client.staged_txn("a", "u").last_seq == 2
        assert client.abort_staged("a", "t").state == "committed"
    assert [f"{seen.method} {seen.target}" for seen in server.seen] == [
        f"PUT {place}/app%401/p0?create=false", f"PUT {place}/app%401/p0?create=false", f"PUT {place}/app%401/p0",
        f"PUT {place}/app%401/p0?create=true", f"POST {place}/app%401/commit", "POST /v0/staged/t/commit",
        f"GET {place}?prefix=x&page_size=1000", f"GET {place}?prefix=x&page_size=1000&cursor=c", f"GET {place}/u",
        f"DELETE {place}/t",
    ]  # fmt: skip
    assert json.loads(server.seen[0].body) == {"node": "n", "records": [{"data": 1}]}
    assert json.loads(server.seen[4].body) == {"parts": ["p0"], "query": "q"}


def test_answer_that_is_not_ours_is_said(connect: Connect) -> None:
    with FakeServer(answer(200, b"<html>"), answer(302, b"", {"Location": "http://elsewhere/"})) as server:
        client = connect(server.url, token="hush")
        with pytest.raises(BadAnswer, match="Health"):
            client.health()
        with pytest.raises(BadAnswer, match="302"):
            client.health()
    assert len(server.seen) == 2


def test_no_token_is_in_a_representation_or_an_error(connect: Connect) -> None:
    with FakeServer(problem(401, "unauthorized")) as server:
        client = connect(server.url, token="hush-hush")
        assert "hush-hush" not in repr(client)
        with pytest.raises(Exception, match="unauthorized") as caught:
            client.health()
    assert "hush-hush" not in repr(caught.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4000", "ftp://a", "http://", "http://a:x", "http://u:p@a", "http://a/v0", "http://a?x"]
)
def test_url_that_is_not_of_a_server_is_refused(connect: Connect, url: str) -> None:
    with pytest.raises(InvalidRequest, match="URL"):
        connect(url)


def test_token_that_no_header_can_carry_is_refused_unseen(connect: Connect) -> None:
    with pytest.raises(InvalidRequest) as caught:
        connect("http://a", token="se\ncret")
    assert "cret" not in str(caught.value)
