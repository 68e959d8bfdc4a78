"""The commands over the client, against a server that says what it was told to say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import Command
from tests.unit.client.server import FakeServer, answer, chunks, problem

CONFIGURED = {"topic": "a", "created": True, "config": {"durability": "fsync"}}
STATE = {
    "topic": "a", "head_seq": 2, "earliest_seq": 1, "next_seq": 3, "count": 2, "bytes": 5,
    "config": {"durability": "disk"}, "epoch": 9,
}  # fmt: skip


def appended(first: int, count: int) -> Any:
    last = first + count - 1
    return answer(200, {"topic": "a", "first_seq": first, "last_seq": last, "head_seq": last, "count": count})


def batch(*records: dict[str, Any], gap: Any = None, head: int = 2) -> Any:
    last = records[-1]["$seq"] if records else head
    return answer(
        200,
        {"topic": "a", "records": list(records), "next_from_seq": last, "head_seq": head, "earliest_seq": 1,
         "caught_up": last == head, "tombstone": gap, "lag": head - last},
    )  # fmt: skip


ONE = {"$seq": 1, "$ts": 1794788592955, "$tag": "eu\x1b[2J", "data": {"id": 1}}
TWO = {"$seq": 2, "$ts": 1794788592956, "$key": "k", "data": "zwei", "meta": {"m": 1}}


def test_topics_are_listed_for_people_and_programs(topics: Command) -> None:
    one = {"topic": "a", "head_seq": 3, "earliest_seq": 1, "count": 3, "bytes": 30, "durable": True}
    with FakeServer(*[answer(200, {"topics": [one]})] * 2, answer(200, {"topics": []})) as server:
        people = topics("topics", "--url", server.url)
        programs = topics("topics", "a", "--url", server.url, "--json")
        nothing = topics("topics", "--url", server.url)
    assert people.out.split()[:2] == ["topic", "head_seq"]
    assert programs.lines[0]["count"] == 3
    assert server.seen[1].target == "/v0/topics?prefix=a&page_size=1000"
    assert (nothing.out, nothing.status) == ("", 0)
    assert "no topics" in nothing.err


def test_create_takes_fields_as_values(topics: Command) -> None:
    with FakeServer(answer(201, CONFIGURED)) as server:
        ran = topics("create", "a", "durability=fsync", "cap_records=10", "durable=true", "--url", server.url, "--json")
    assert ran.lines[0]["created"] is True
    assert server.seen[0].json == {"durability": "fsync", "cap_records": 10, "durable": True}
    wrong = topics("create", "a", "durability")
    assert (wrong.status, "FIELD=VALUE" in wrong.err) == (2, True)


def test_append_sends_each_argument_as_a_record(topics: Command) -> None:
    with FakeServer(appended(1, 2)) as server:
        ran = topics("append", "a", '{"id": 1.10}', "2", "--tag", "eu", "--url", server.url, "--json")
    assert ran.lines == [{"topic": "a", "count": 2, "first_seq": 1, "last_seq": 2}]
    assert b'{"id": 1.10}' in server.seen[0].body
    assert [record["tag"] for record in server.seen[0].json["records"]] == ["eu", "eu"]


def test_append_reads_lines_from_its_input_in_batches(topics: Command) -> None:
    lines = b"".join(b'{"n":%d}\n\n' % n for n in range(1500))
    with FakeServer(appended(1, 1000), appended(1001, 500)) as server:
        ran = topics("append", "a", "--url", server.url, "--json", stdin=lines)
    assert ran.lines == [{"topic": "a", "count": 1500, "first_seq": 1, "last_seq": 1500}]
    assert [len(request.json["records"]) for request in server.seen] == [1000, 500]


def test_append_takes_numbers_of_any_size(topics: Command) -> None:
    with FakeServer(appended(1, 2)) as server:
        ran = topics("append", "a", "1e999", "1" * 5000, "--url", server.url)
    assert ran.status == 0
    assert b'{"data":1e999},{"data":%s}' % (b"1" * 5000) in server.seen[0].body


def test_append_takes_plain_text_and_whole_records(topics: Command) -> None:
    with FakeServer(appended(1, 1), appended(2, 1)) as server:
        topics("append", "a", "not json", "--text", "--url", server.url)
        topics("append", "a", '{"data": [1], "tag": "own"}', "--records", "--tag", "eu", "--url", server.url)
    assert server.seen[0].json["records"] == [{"data": "not json"}]
    assert server.seen[1].json["records"] == [{"data": [1], "tag": "own"}]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["append", "a", "x", "--text", "--records"], "exclude"),
        (["delete", "a"], "--before-seq"),
        (["read", "a", "--limit", "0"], "--limit"),
        (["info", "a", "--url", "nowhere"], "http://127.0.0.1:4000"),
        (["info", "a", "--timeout", "-1"], "--timeout is -1"),
        (["group", "fetch", "a"], "needs the name of a group"),
        (["group", "seek", "a", "g", "there"], "earliest"),
    ],
)
def test_call_without_sense_is_refused_before_it_is_sent(topics: Command, arguments: list[str], told: str) -> None:
    ran = topics(*arguments)
    assert ran.status == 2
    assert told in ran.err
    assert f"`topics {arguments[0]} --help`" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["append", "a"], "nothing to append"),
        (["append", "a", "{bad"], "--text"),
        (["append", "a", "[1]", "--records"], "not JSON"),
        (["drop", "a"], "--yes"),
    ],
)
def test_data_without_sense_and_a_drop_without_consent_fail(topics: Command, arguments: list[str], told: str) -> None:
    ran = topics(*arguments)
    assert ran.status == 1
    assert told in ran.err


def test_append_that_fails_on_its_way_says_how_far_it_came(topics: Command) -> None:
    done = {"topic": "a", "first_seq": 5, "last_seq": 1004, "head_seq": 1004, "count": 1000, "created": False}
    with FakeServer(answer(200, done)) as server:
        ran = topics("append", "a", "--url", server.url, stdin=b"1\n" * 1500 + b"oops\n")
    assert ran.status == 1
    assert "1000 records were appended before this, the last one as seq 1004" in ran.err
    assert "'oops' is not JSON" in ran.err


def test_read_prints_records_and_gaps(topics: Command) -> None:
    gap = {"gap_from": 1, "gap_to": 4, "reason": "cap"}
    with FakeServer(batch(ONE, TWO, gap=gap)) as server:
        ran = topics("read", "a", "--url", server.url)
    assert ran.out.splitlines() == [
        "… 4 lost: 1 to 4, cap",
        '1 2026-11-16T00:23:12.955Z tag=eu\\x1b[2J {"id": 1}',
        '2 2026-11-16T00:23:12.956Z key=k "zwei"',
    ]


def test_read_says_in_words_that_a_topic_is_another(topics: Command) -> None:
    empty = batch(gap={"gap_from": 1, "gap_to": 0, "reason": "recreated"}, head=0)
    with FakeServer(empty, empty) as server:
        people = topics("read", "a", "--from-seq", "9", "--url", server.url)
        programs = topics("read", "a", "--from-seq", "9", "--json", "--url", server.url)
    assert people.out.splitlines() == ["… recreated: it is another topic than before, and read from its beginning"]
    assert programs.lines == [{"tombstone": {"gap_from": 1, "gap_to": 0, "reason": "recreated"}}]


def test_read_prints_json_lines_for_programs(topics: Command) -> None:
    with FakeServer(batch(ONE, TWO, gap={"gap_from": 1, "gap_to": 4, "reason": "cap"})) as server:
        ran = topics("read", "a", "--from-seq", "0", "--json", "--url", server.url)
    assert ran.lines == [{"tombstone": {"gap_from": 1, "gap_to": 4, "reason": "cap"}}, ONE, TWO]


def test_read_stops_at_its_limit(topics: Command) -> None:
    with FakeServer(batch(ONE, TWO)) as server:
        assert len(topics("read", "a", "--limit", "1", "--json", "--url", server.url).lines) == 1
    assert server.seen[0].json["limit"] == 1


def test_info_leaves_the_read_clocks_alone(topics: Command) -> None:
    with FakeServer(answer(200, STATE), answer(200, STATE)) as server:
        people = topics("info", "a", "--url", server.url)
        assert topics("info", "a", "--json", "--url", server.url).lines[0]["epoch"] == 9
    assert "config.durability" in people.out
    assert server.seen[0].target == "/v0/topics/a?touch=false"


def test_delete_and_drop_say_what_they_did(topics: Command) -> None:
    done = {"topic": "a", "deleted": 4, "earliest_seq": 5, "head_seq": 9, "count": 5, "bytes": 50}
    dropped = {"topic": "a", "deleted": True, "routers_removed": ["r"]}
    with FakeServer(answer(200, done), answer(200, dropped), answer(200, dropped)) as server:
        ran = topics("delete", "a", "--before-seq", "5", "--tag", "x*", "--json", "--url", server.url)
        assert ran.lines[0]["deleted"] == 4
        assert topics("drop", "a", "--yes", "--json", "--url", server.url).lines[0]["routers_removed"] == ["r"]
        assert topics("drop", "a", "--if-empty", "--url", server.url).status == 0
    assert server.seen[1].target == "/v0/topics/a"
    assert server.seen[2].target == "/v0/topics/a?if_empty=true"


def test_errors_of_the_server_are_said_with_their_status(topics: Command) -> None:
    steps = [
        problem(404, "topic_not_found", {"topic": "a"}),
        problem(404, "topic_not_found"),
        problem(503, "not_ready"),
    ]
    with FakeServer(*steps) as server:
        people = topics("info", "a", "--url", server.url)
        programs = topics("info", "a", "--url", server.url, "--json")
        later = topics("info", "a", "--url", server.url, "--timeout", "0.01")
    assert (people.status, people.out) == (1, "")
    assert people.err.startswith("error: because of topic_not_found")
    assert '"code":"topic_not_found"' in programs.err
    assert later.status == 3


def test_server_and_token_come_from_the_environment(topics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(answer(200, STATE)) as server:
        monkeypatch.setenv("TOPICS_URL", server.url)
        monkeypatch.setenv("TOPICS_TOKEN", "hush")
        ran = topics("info", "a")
    assert ran.status == 0
    assert server.seen[0].headers["authorization"] == "Bearer hush"
    assert "hush" not in ran.out + ran.err


def test_workers_claim_and_settle_jobs(topics: Command) -> None:
    job = {"$seq": 7, "$ts": 1, "lease_id": "lease_a", "deadline": 5, "deliveries": 2, "data": {"x": 1}}
    claimed = answer(200, {"topic": "q", "claimed": [job], "count": 1, "ready": 0})
    done = answer(200, {"topic": "q", "acked": 1, "skipped": [], "why": {}, "ready": 0, "in_flight": 0})
    refused = answer(200, {"topic": "q", "nacked": 0, "skipped": [9], "why": {"9": "expired"}, "ready": 0})
    moved = answer(200, {"moved": 3, "left": 1})
    with FakeServer(claimed, done, refused, moved) as server:
        given = ("--url", server.url, "--json")
        assert topics("claim", "q", "--node", "w", "--max", "8", *given).lines[0]["lease_id"] == "lease_a"
        assert topics("ack", "q", "7", "--node", "w", *given).lines == [{"done": 1, "skipped": [], "why": {}}]
        late = topics("nack", "q", "9", "--node", "w", "--delay-ms", "5", *given)
        assert topics("redrive", "q.dead", "--rate-per-s", "100", *given).lines[0] == {"moved": 3, "left": 1}
    assert (late.status, late.lines[0]["why"]) == (1, {"9": "expired"})
    assert server.seen[0].json == {"node": "w", "max": 8}
    assert server.seen[2].json == {"node": "w", "seqs": [9], "lease_ids": [""], "delay_ms": 5}


def test_claimed_jobs_show_their_data_as_it_was_sent(topics: Command) -> None:
    body = b'{"topic":"q","claimed":[%s],"count":3,"ready":0}' % b",".join(
        b'{"$seq":%d,"$ts":1,"lease_id":"l","deadline":5,"deliveries":1,"data":%s}' % (at, text)
        for at, text in enumerate((b"1e999", b"7" * 5000, b'"plain"'), 1)
    )
    with FakeServer(answer(200, body), answer(200, body)) as server:
        people = topics("claim", "q", "--node", "w", "--url", server.url)
        programs = topics("claim", "q", "--node", "w", "--url", server.url, "--json")
    assert (people.status, programs.status) == (0, 0)
    assert [line.split()[-1] for line in people.out.splitlines()[1:]] == ["1e999", "7" * 5000, "plain"]
    assert [line.partition('"data":')[2] for line in programs.out.splitlines()] == [
        "1e999}", "7" * 5000 + "}", '"plain"}'
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["ack", "nack"])
def test_settling_no_job_at_all_is_refused(topics: Command, command: str) -> None:
    ran = topics(command, "q", "--node", "w")
    assert ran.status == 2
    assert "topics claim" in ran.err


def test_config_field_nobody_knows_is_refused_before_anything_is_sent(topics: Command) -> None:
    ran = topics("create", "a", "ttl=5")
    assert ran.status == 2
    assert "'ttl'" in ran.err
    assert "ttl_ms" in ran.err


def test_server_that_is_not_there_is_told_with_a_remedy(topics: Command) -> None:
    ran = topics("topics", "--url", "http://127.0.0.1:1", "--timeout", "0.1")
    assert ran.status == 3
    assert "topics serve" in ran.err


def test_watch_prints_events_as_they_come(topics: Command) -> None:
    session = {"wid": "wid_x", "stream_url": "/v0/watch/wid_x", "session_ttl_ms": 300_000, "topics": {
        "a": {"from_seq": 0, "head_seq": 2, "earliest_seq": 2},
    }}  # fmt: skip
    stream = chunks(
        b"retry: 2000\n\n",
        b'id: x\nevent: tombstone\ndata: {"topic":"a","gap_from":1,"gap_to":1,"reason":"cap"}\n\n',
        b'id: x\nevent: record\ndata: {"topic":"a","records":[{"$seq":2,"$ts":1794788592956,"data":"zwei"}]}\n\n',
        b'id: x\nevent: topic-deleted\ndata: {"topic":"a","head_seq":0,"reason":"deleted"}\n\n',
    )
    with FakeServer(answer(200, session), stream, answer(200, session), stream) as server:
        people = topics("watch", "a", "--from-seq", "0", "--url", server.url)
        programs = topics("watch", "a", "--url", server.url, "--json", "--limit", "1")
    assert server.seen[0].json["topics"] == {"a": {"from_seq": 0}}
    assert server.seen[2].json["topics"] == {"a": {"tail": True}}
    assert [line.split()[0] for line in people.out.splitlines()] == ["…", "2"]
    assert programs.lines == [
        {"tombstone": {"gap_from": 1, "gap_to": 1, "reason": "cap"}},
        {"$seq": 2, "$ts": 1794788592956, "data": "zwei"},
    ]
    wrong = topics("watch", "a", "--limit", "0", "--url", server.url)
    assert (wrong.status, "--limit" in wrong.err) == (2, True)
