"""Staged append: parts that are durable and invisible, commits that are atomic and repeatable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.http.client import Api, InProcess, Reply
from tests.contract.http.inprocess import Engine
from topics.api.app import AppOptions
from topics.api.auth import parse_keys
from topics.model import limits


def stage(api: Api, topic: str, txn: str, part: str, *data: Any, query: str = "", **fields: Any) -> Reply:
    records = [item if isinstance(item, dict) and "data" in item else {"data": item} for item in data]
    return api.call("PUT", f"/v0/topics/{topic}/staged/{txn}/{part}{query}", {"records": records, **fields})


def commit(api: Api, topic: str, txn: str, *parts: str, **fields: Any) -> Reply:
    return api.call("POST", f"/v0/topics/{topic}/staged/{txn}/commit", {"parts": list(parts), **fields})


def commit_all(api: Api, txn: str, topics: dict[str, list[str]], **fields: Any) -> Reply:
    return api.call("POST", f"/v0/staged/{txn}/commit", {"topics": topics, **fields})


def data_of(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.diff(topic, limit=1000).json["records"]]


def without_time(reply: Reply) -> Any:
    body = reply.json
    assert body.pop("performance")["server_total_ms"] >= 0
    return body


# -- parts -------------------------------------------------------------------------------------------------------------


def test_part_is_stored_and_nobody_sees_it(api: Api, topic: str) -> None:
    made = stage(api, topic, "t1", "p0", 1, {"data": 2, "tag": "x"})
    assert made.status == 201
    body = without_time(made)
    assert body.pop("bytes") > 0
    assert body == {"txn": "t1", "part": "p0", "count": 2}
    assert data_of(api, topic) == []
    assert api.state(topic)["head_seq"] == 0


def test_same_part_again_is_welcome_and_another_is_refused(api: Api, topic: str) -> None:
    first = without_time(stage(api, topic, "t1", "p0", 1, 2))
    again = stage(api, topic, "t1", "p0", 1, 2)
    assert (again.status, without_time(again)) == (200, first)
    other = stage(api, topic, "t1", "p0", 1, 3)
    assert other.problem == (409, "part_exists")
    assert other.detail == {"txn": "t1", "part": "p0"}


def test_part_may_come_as_lines_or_as_an_arrow_stream(api: Api, topic: str) -> None:
    lines = b'{"data":1,"tag":"a"}\n{"data":2}\n'
    put = f"/v0/topics/{topic}/staged/t1"
    assert api.call("PUT", f"{put}/lines?node=n1", lines, {"content-type": "application/x-ndjson"}).status == 201
    table = pa.table({"data": ["3", "4"], "key": ["k", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrow = {"content-type": "application/vnd.apache.arrow.stream"}
    assert api.call("PUT", f"{put}/arrow", sink.getvalue().to_pybytes(), arrow).status == 201
    assert commit(api, topic, "t1", "lines", "arrow").json["count"] == 4
    found = api.diff(topic, include_tags=True, include_keys=True).json["records"]
    assert [(one["data"], one.get("$tag"), one.get("$node"), one.get("$key")) for one in found] == [
        (1, "a", "n1", None), (2, None, "n1", None), (3, None, None, "k"), (4, None, None, None),
    ]  # fmt: skip


def test_part_of_another_kind_of_body_is_refused(api: Api, topic: str) -> None:
    reply = api.call("PUT", f"/v0/topics/{topic}/staged/t/p", b"x", {"content-type": "text/plain"})
    assert reply.problem == (415, "unsupported_media_type")


def test_bad_record_stores_nothing(api: Api, topic: str) -> None:
    assert stage(api, topic, "t1", "p0", {"data": 1, "tag": "x" * 300}).problem == (400, "invalid_request")
    assert api.call("PUT", f"/v0/topics/{topic}/staged/t1/p0", b"{", {"content-type": "application/json"}).status == 400
    api.put(topic)
    assert commit(api, topic, "t1", "p0").problem == (409, "part_missing")


@pytest.mark.parametrize("txn", ["a@b", "a@-1", "a@18446744073709551616", "a@", "@1", "a@01", "a%20b", "-a"])
def test_transaction_names_have_a_form(api: Api, topic: str, txn: str) -> None:
    assert stage(api, topic, txn, "p0", 1).problem == (400, "invalid_request")
    api.put(topic)
    assert commit(api, topic, txn, "p0").problem == (400, "invalid_request")
    assert api.call("DELETE", f"/v0/topics/{topic}/staged/{txn}").problem == (400, "invalid_request")


def test_part_names_are_those_of_topics_whatever_the_word(api: Api, topic: str) -> None:
    assert stage(api, topic, "t1", "a%20b", 1).problem == (400, "invalid_request")
    assert stage(api, topic, "t1", "commit", 1).status == 201
    assert commit(api, topic, "t1", "commit").json["count"] == 1


def test_staging_makes_an_absent_topic_unless_told_otherwise(api: Api, topic: str) -> None:
    assert stage(api, topic, "t1", "p0", 1, query="?create=false").problem == (404, "topic_not_found")
    assert stage(api, topic, "t1", "p0", 1).status == 201
    assert api.state(topic)["count"] == 0
    assert stage(api, topic, "t1", "p1", 1, query="?create=false").status == 201


def test_ephemeral_topic_takes_no_parts(api: Api, topic: str) -> None:
    api.put(topic, durability="ephemeral")
    assert stage(api, topic, "t1", "p0", 1).problem == (400, "invalid_request")


def test_queue_takes_staged_jobs_and_no_delays(api: Api, topic: str) -> None:
    api.put(topic, type="queue")
    assert stage(api, topic, "t1", "p0", {"data": 1, "delay_ms": 5}).problem == (400, "invalid_request")
    stage(api, topic, "t1", "p0", "job", "job 2")
    commit(api, topic, "t1", "p0")
    claimed = api.call("POST", f"/v0/topics/{topic}/claim", {"node": "n", "max": 5}).json
    assert [job["data"] for job in claimed["claimed"]] == ["job", "job 2"]


def test_part_has_a_ceiling_of_its_own(api: Api, topic: str) -> None:
    body = b'{"records":[{"data":"' + b"x" * (limits.PART_BYTES + 1) + b'"}]}'
    reply = api.call("PUT", f"/v0/topics/{topic}/staged/t/p", body, {"content-type": "application/json"})
    assert reply.problem == (413, "payload_too_large")
    assert str(limits.PART_BYTES) in reply.json["error"]["message"]


def test_part_holds_a_hundred_thousand_records(own: Api, topic: str) -> None:
    lines = {"content-type": "application/x-ndjson"}
    put = f"/v0/topics/{topic}/staged/t"
    assert own.call("PUT", f"{put}/p", b'{"data":1}\n' * limits.PART_RECORDS, lines).json["count"] == 100_000
    one_more = own.call("PUT", f"{put}/q", b'{"data":1}\n' * (limits.PART_RECORDS + 1), lines)
    assert one_more.problem == (400, "batch_too_large")
    assert commit(own, topic, "t", "p").json["last_seq"] == 100_000
    assert own.diff(topic, from_seq=99_999).json["records"][0]["$seq"] == 100_000


# -- commits -----------------------------------------------------------------------------------------------------------


def test_commit_appends_the_named_parts_in_their_order(api: Api, topic: str) -> None:
    api.append(topic, "before")
    stage(api, topic, "t1", "p0", 1, 2)
    stage(api, topic, "t1", "p1", 3)
    stage(api, topic, "t1", "p2", 4)
    done = commit(api, topic, "t1", "p2", "p0")
    assert done.status == 200
    assert without_time(done) == {"txn": "t1", "first_seq": 2, "last_seq": 4, "count": 3, "repeated": False}
    assert data_of(api, topic) == ["before", 4, 1, 2]
    assert api.append(topic, "after").json["first_seq"] == 5
    state = api.call("GET", f"/v0/topics/{topic}/staged/t1").json
    assert (state["state"], state["first_seq"], state["last_seq"], state["count"]) == ("committed", 2, 4, 3)


def test_repeated_commit_answers_the_first_result_whatever_it_names(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1, 2)
    first = without_time(commit(api, topic, "t1", "p0"))
    for parts in (["p0"], [], ["never-staged"]):
        assert without_time(commit(api, topic, "t1", *parts)) == {**first, "repeated": True}
    assert data_of(api, topic) == [1, 2]


def test_part_of_a_committed_transaction_passes_and_stores_nothing(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    commit(api, topic, "t1", "p0")
    for data in (1, 2):
        late = stage(api, topic, "t1", "p0", data)
        assert (late.status, without_time(late)) == (200, {"txn": "t1", "part": "p0", "committed": True})
    assert stage(api, topic, "t1", "p9", 5).json["committed"] is True
    assert data_of(api, topic) == [1]


def test_commit_of_nothing_has_no_seqs(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    done = commit(api, topic, "t1")
    assert without_time(done) == {"txn": "t1", "first_seq": None, "last_seq": None, "count": 0, "repeated": False}
    again = without_time(commit(api, topic, "t1", "p0"))
    assert again == {"txn": "t1", "first_seq": None, "last_seq": None, "count": 0, "repeated": True}
    assert data_of(api, topic) == []
    assert stage(api, topic, "t2", "empty").json["count"] == 0
    assert commit(api, topic, "t2", "empty").json["first_seq"] is None


def test_missing_part_appends_nothing_and_keeps_the_others(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    missing = commit(api, topic, "t1", "p0", "p1")
    assert missing.problem == (409, "part_missing")
    assert missing.detail == {"topic": topic, "txn": "t1", "part": "p1"}
    assert data_of(api, topic) == []
    assert commit(api, topic, "t1", "p0").json["count"] == 1


def test_part_named_twice_is_refused(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    assert commit(api, topic, "t1", "p0", "p0").problem == (400, "invalid_request")


def test_commit_on_an_absent_topic_is_not_found(api: Api, topic: str) -> None:
    assert commit(api, topic, "t1").problem == (404, "topic_not_found")


def test_app_remembers_its_highest_version_alone(api: Api, topic: str) -> None:
    for version in (3, 4, 7):
        stage(api, topic, f"app@{version}", "p0", version)
        assert commit(api, topic, f"app@{version}", "p0").json["repeated"] is False
    lower = without_time(commit(api, topic, "app@4", "p0"))
    assert lower == {"txn": "app@4", "first_seq": None, "last_seq": None, "count": 0, "repeated": True}
    highest = commit(api, topic, "app@7", "p0").json
    assert (highest["first_seq"], highest["repeated"]) == (3, True)
    assert stage(api, topic, "app@0", "p0", 0).json["committed"] is True
    assert stage(api, topic, "other@0", "p0", 0).status == 201
    assert data_of(api, topic) == [3, 4, 7]


def test_commit_of_a_version_drops_the_open_stages_below_it(api: Api, topic: str) -> None:
    for version in (1, 2, 3):
        stage(api, topic, f"app@{version}", "p0", version)
    stage(api, topic, "app", "p0", "plain")
    commit(api, topic, "app@2", "p0")
    listed = api.call("GET", f"/v0/topics/{topic}/staged").json["staged"]
    assert [(one["txn"], one["state"]) for one in listed] == [
        ("app", "open"), ("app@2", "committed"), ("app@3", "open"),
    ]  # fmt: skip
    assert data_of(api, topic) == [2]


def test_app_of_another_query_is_foreign(api: Api, topic: str) -> None:
    stage(api, topic, "app@1", "p0", 1)
    assert commit(api, topic, "app@1", "p0", query="q-1").status == 200
    stage(api, topic, "app@2", "p0", 2)
    for version in (1, 2, 0):
        foreign = commit(api, topic, f"app@{version}", "p0", query="q-2")
        assert foreign.problem == (409, "txn_foreign")
    assert commit(api, topic, "app@2", "p0", query="q-1").json["count"] == 1
    assert data_of(api, topic) == [1, 2]


def test_records_of_a_commit_are_read_in_every_way(api: Api, topic: str) -> None:
    api.append(topic, {"data": 0, "tag": "a"})
    stage(api, topic, "t1", "p0", {"data": 1, "tag": "a", "key": "k", "meta": {"m": 1}}, {"data": 2, "node": "n"})
    done = commit(api, topic, "t1", "p0").json
    api.append(topic, {"data": 3, "tag": "a"})
    assert done["first_seq"] == 2
    base = f"/v0/topics/{topic}"

    def look() -> list[Any]:
        page = api.call("GET", f"{base}/records?include=tags,meta,keys,data").json["records"]
        tagged = api.call("GET", f"{base}/tags?match=a").json["records"]
        keyed = api.call("GET", f"{base}/keys/k").json
        lines = api.call("GET", f"{base}/records", headers={"accept": "application/x-ndjson"}).body.splitlines()
        times = [record["$ts"] for record in page]
        assert times == sorted(times)
        assert times[1] == times[2], "one commit has one time"
        at = api.call("GET", f"{base}/at?ts={times[1]}").json
        names = api.call("GET", f"{base}/tags/names").json["tags"]
        return [
            [(one["$seq"], one["data"], one.get("$tag"), one.get("meta")) for one in page],
            [one["$seq"] for one in tagged], keyed["record"]["$seq"], len(lines), at["ts"] == times[1], names,
        ]  # fmt: skip

    live = look()
    assert live[0] == [(1, 0, "a", None), (2, 1, "a", {"m": 1}), (3, 2, None, None), (4, 3, "a", None)]
    assert live[1] == [1, 2, 4]
    assert live[2] == 2
    assert api.state(topic)["durable_seq"] >= 3
    for _ in range(3):
        assert api.call("POST", "/v0/admin/checkpoint").json["done"] is True
        assert look() == live
    assert api.delete(topic, match="a").json["deleted"] == 3
    assert data_of(api, topic) == [2]


def test_committed_records_can_be_deleted_before_any_checkpoint(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", {"data": 1, "tag": "x"}, {"data": 2, "tag": "y"}, {"data": 3, "tag": "x"})
    commit(api, topic, "t1", "p0")
    assert api.delete(topic, match="x").json["deleted"] == 2
    assert data_of(api, topic) == [2]
    assert api.delete(topic, before_seq=3).json["deleted"] == 1
    assert data_of(api, topic) == []
    assert commit(api, topic, "t1").json["first_seq"] == 1


def test_cap_evicts_what_a_commit_is_too_much_of(api: Api, topic: str) -> None:
    api.put(topic, cap_records=3)
    api.append(topic, 1, 2)
    stage(api, topic, "t1", "p0", 3, 4)
    commit(api, topic, "t1", "p0")
    assert api.state(topic)["count"] == 3
    assert data_of(api, topic) == [2, 3, 4]


def test_full_topic_rejects_a_commit_and_keeps_its_parts(api: Api, topic: str) -> None:
    api.put(topic, cap_records=3, discard="reject")
    api.append(topic, 1, 2)
    stage(api, topic, "t1", "p0", 3, 4)
    assert commit(api, topic, "t1", "p0").problem == (422, "topic_full")
    assert data_of(api, topic) == [1, 2]
    api.delete(topic, before_seq=2)
    assert commit(api, topic, "t1", "p0").json["count"] == 2


# -- several topics ----------------------------------------------------------------------------------------------------


def test_commit_over_several_topics_comes_about_in_all(api: Api, topic: str) -> None:
    names = [f"{topic}.{letter}" for letter in "abc"]
    for number, name in enumerate(names):
        api.append(name, *range(number + 1))
        stage(api, name, "app@1", "p0", "x", "y")
    parts = {name: ["p0"] for name in names}
    done = commit_all(api, "app@1", parts, query="q")
    assert without_time(done) == {
        "txn": "app@1",
        "topics": {
            name: {"first_seq": number + 2, "last_seq": number + 3, "count": 2} for number, name in enumerate(names)
        },
        "repeated": False,
    }
    again = without_time(commit_all(api, "app@1", parts, query="q"))
    assert again["repeated"] is True
    assert again["topics"] == done.json["topics"]
    for number, name in enumerate(names):
        assert data_of(api, name) == [*range(number + 1), "x", "y"]
        assert commit(api, name, "app@1").json["repeated"] is True


def test_commit_over_several_topics_is_all_or_none(api: Api, topic: str) -> None:
    one, other = f"{topic}.a", f"{topic}.b"
    api.put(other, cap_records=1, discard="reject")
    api.append(other, 0)
    for name in (one, other):
        stage(api, name, "t1", "p0", 1)
    parts = {one: ["p0"], other: ["p0"]}
    assert commit_all(api, "t1", {**parts, f"{topic}.c": []}).problem == (404, "topic_not_found")
    assert commit_all(api, "t1", {one: ["p0"], other: ["p1"]}).problem == (409, "part_missing")
    assert commit_all(api, "t1", parts).problem == (422, "topic_full")
    assert (data_of(api, one), data_of(api, other)) == ([], [0])
    api.delete(other, before_seq=2)
    done = commit_all(api, "t1", parts).json
    assert (done["topics"][one]["count"], done["repeated"]) == (1, False)
    assert (data_of(api, one), data_of(api, other)) == ([1], [1])


def test_commit_over_several_topics_may_name_one_or_none(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    assert commit_all(api, "t1", {}).problem == (400, "invalid_request")
    assert commit_all(api, "t1", {topic: ["p0"]}).json["topics"][topic]["first_seq"] == 1


def test_topics_that_have_committed_answer_what_they_had(api: Api, topic: str) -> None:
    one, other = f"{topic}.a", f"{topic}.b"
    for name in (one, other):
        stage(api, name, "t1", "p0", name)
    commit(api, one, "t1", "p0")
    done = commit_all(api, "t1", {one: ["p0"], other: ["p0"]}).json
    assert done["repeated"] is False
    assert (data_of(api, one), data_of(api, other)) == ([one], [other])


def test_commits_of_one_transaction_at_once_append_it_once(engine: Engine, topic: str) -> None:
    api = Api(InProcess(engine))
    names = [f"{topic}.{letter}" for letter in "ab"]
    with ThreadPoolExecutor(8) as pool:
        for round_number in range(5):
            txn = f"app@{round_number}"
            parts = {name: ["p0"] for name in names}
            list(pool.map(lambda name, txn=txn: stage(api, name, txn, "p0", txn), names * 4))
            done = list(pool.map(lambda _, txn=txn, parts=parts: commit_all(api, txn, parts), range(8)))
            assert sorted(reply.json["repeated"] for reply in done) == [False] + [True] * 7
            assert len({str(reply.json["topics"]) for reply in done}) == 1
            aborts = list(pool.map(lambda name, txn=txn: api.call("DELETE", f"/v0/topics/{name}/staged/{txn}"), names))
            assert [reply.json["aborted"] for reply in aborts] == [False, False]
    for name in names:
        assert data_of(api, name) == [f"app@{number}" for number in range(5)]


def test_appends_and_checkpoints_go_on_beside_commits(engine: Engine, topic: str) -> None:
    api = Api(InProcess(engine))
    names = [f"{topic}.{letter}" for letter in "abc"]
    for name in names:
        api.put(name, durability="fsync")

    def sink(worker: int) -> None:
        for number in range(6):
            txn = f"w{worker}-{number}"
            for name in names:
                assert stage(api, name, txn, "p0", txn, txn).status == 201
            assert commit_all(api, txn, {name: ["p0"] for name in names}).json["repeated"] is False

    def writer(name: str) -> None:
        for number in range(20):
            assert api.append(name, f"plain {number}").status == 200

    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(sink, worker) for worker in range(3)] + [pool.submit(writer, name) for name in names]
        checks = [pool.submit(api.call, "POST", "/v0/admin/checkpoint") for _ in range(4)]
        for one in work:
            one.result()
        assert all(check.result().status == 200 for check in checks)
    for name in names:
        found = data_of(api, name)
        assert len(found) == 20 + 3 * 6 * 2
        assert [one for one in found if one.startswith("plain")] == [f"plain {number}" for number in range(20)]
        for worker in range(3):
            mine = [one for one in found if one.startswith(f"w{worker}-")]
            assert mine == [f"w{worker}-{number}" for number in range(6) for _ in range(2)]


# -- state and aborts --------------------------------------------------------------------------------------------------


def test_open_transaction_shows_its_parts(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p1", 1, 2)
    stage(api, topic, "t1", "p0", 3)
    state = without_time(api.call("GET", f"/v0/topics/{topic}/staged/t1"))
    assert (state["txn"], state["state"]) == ("t1", "open")
    assert [(part["part"], part["count"]) for part in state["parts"]] == [("p0", 1), ("p1", 2)]
    assert api.call("GET", f"/v0/topics/{topic}/staged/t2").problem == (404, "not_found")


def test_transactions_are_listed_in_pages(api: Api, topic: str) -> None:
    for number in range(5):
        stage(api, topic, f"t{number}", "p0", number)
    commit(api, topic, "t3", "p0")
    seen, cursor = [], ""
    while True:
        page = api.call("GET", f"/v0/topics/{topic}/staged?page_size=2&cursor={cursor}").json
        seen += [(one["txn"], one["state"]) for one in page["staged"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert seen == [("t0", "open"), ("t1", "open"), ("t2", "open"), ("t3", "committed"), ("t4", "open")]


def test_abort_drops_an_open_transaction(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    gone = api.call("DELETE", f"/v0/topics/{topic}/staged/t1")
    assert (gone.status, without_time(gone)) == (200, {"txn": "t1", "aborted": True})
    assert commit(api, topic, "t1", "p0").problem == (409, "part_missing")
    assert api.call("DELETE", f"/v0/topics/{topic}/staged/t1").json["aborted"] is True
    assert stage(api, topic, "t1", "p0", 2).status == 201
    assert commit(api, topic, "t1", "p0").json["count"] == 1
    assert data_of(api, topic) == [2]


def test_abort_changes_nothing_of_a_commit(api: Api, topic: str) -> None:
    stage(api, topic, "t1", "p0", 1)
    commit(api, topic, "t1", "p0")
    for _ in range(2):
        kept = without_time(api.call("DELETE", f"/v0/topics/{topic}/staged/t1"))
        assert kept == {"txn": "t1", "aborted": False, "state": "committed"}
    assert data_of(api, topic) == [1]
    assert commit(api, topic, "t1", "p0").json["repeated"] is True


def test_memory_belongs_to_one_instance_of_a_topic(api: Api, topic: str) -> None:
    stage(api, topic, "app@9", "p0", 1)
    commit(api, topic, "app@9", "p0")
    stage(api, topic, "left", "p0", 2)
    api.call("DELETE", f"/v0/topics/{topic}")
    assert stage(api, topic, "app@1", "p0", 3).status == 201
    assert api.call("GET", f"/v0/topics/{topic}/staged/left").status == 404
    assert commit(api, topic, "app@1", "p0").json["first_seq"] == 1
    assert data_of(api, topic) == [3]


# -- bounds, on a server of its own ------------------------------------------------------------------------------------


def test_open_stages_hold_no_more_than_they_may(engine: Engine, own: Api, topic: str) -> None:
    engine.store.staging.bytes_max = 300
    assert stage(own, topic, "t1", "p0", "x" * 50).status == 201
    full = stage(own, topic, "t2", "p0", "x" * 200)
    assert full.problem == (429, "stage_full")
    assert full.detail == {"limit": "staged_max_bytes", "max": 300}
    assert "retry-after" in full.headers
    commit(own, topic, "t1", "p0")
    assert engine.store.staging.bytes == 0
    assert stage(own, topic, "t2", "p0", "x" * 200).status == 201


def test_metrics_tell_of_open_stages(engine: Engine, own: Api, topic: str) -> None:
    stage(own, topic, "t1", "p0", 1)
    shown = own.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json
    assert shown["stages_open"] == 1
    assert shown["staged_bytes"] == engine.store.staging.bytes > 0
    assert b"topics_stages_open 1" in own.call("GET", "/v0/metrics").body


def test_open_stage_expires_after_its_last_part(engine: Engine, own: Api, topic: str) -> None:
    staging = engine.store.staging
    stage(own, topic, "t1", "p0", 1)
    engine.clock.advance(staging.ttl_ms - 1000)
    stage(own, topic, "t1", "p1", 2)
    engine.clock.advance(2000)
    staging.tend(engine.store)
    assert own.call("GET", f"/v0/topics/{topic}/staged/t1").json["state"] == "open"
    engine.clock.advance(staging.ttl_ms)
    staging.tend(engine.store)
    assert own.call("GET", f"/v0/topics/{topic}/staged/t1").status == 404
    assert staging.bytes == 0


def test_plain_transaction_is_forgotten_in_time_and_an_app_never(engine: Engine, own: Api, topic: str) -> None:
    for txn in ("t1", "app@1"):
        stage(own, topic, txn, "p0", txn)
        commit(own, topic, txn, "p0")
    engine.clock.advance(engine.store.staging.memory_ms + 1000)
    engine.store.staging.tend(engine.store)
    assert own.call("GET", f"/v0/topics/{topic}/staged/t1").status == 404
    assert commit(own, topic, "app@1").json["repeated"] is True


def test_quota_refuses_a_commit_and_keeps_its_parts(engine: Engine, own: Api, topic: str) -> None:
    stage(own, topic, "t1", "p0", "x" * 50)
    engine.store.ledger.bytes_max = 10
    assert commit(own, topic, "t1", "p0").problem == (429, "throttled")
    engine.store.ledger.bytes_max = 0
    assert commit(own, topic, "t1", "p0").json["count"] == 1


def test_key_commits_only_where_it_may_write(tmp_path: Any) -> None:
    options = AppOptions(version="test", keyring=parse_keys("all,mine:w:mine.,reader:r"), hosts=())
    engine = Engine(str(tmp_path / "store"), options)
    try:
        everything, mine = Api(InProcess(engine), "all"), Api(InProcess(engine), "mine")
        for name in ("mine.a", "other"):
            stage(everything, name, "t1", "p0", 1)
        assert stage(mine, "other", "t1", "p1", 1).problem == (403, "forbidden")
        refused = commit_all(mine, "t1", {"mine.a": ["p0"], "other": ["p0"]})
        assert refused.problem == (403, "forbidden")
        assert refused.detail == {"topic": "other"}
        assert everything.state("mine.a")["head_seq"] == 0
        assert commit_all(mine, "t1", {"mine.a": ["p0"]}).status == 200
        assert commit_all(Api(InProcess(engine), "reader"), "t1", {"mine.a": []}).problem == (403, "forbidden")
    finally:
        engine.close()


def test_parts_and_commits_outlive_a_restart(tmp_path: Any) -> None:
    path = str(tmp_path / "store")
    for number in range(3):
        engine = Engine(path)
        try:
            api = Api(InProcess(engine))
            if number == 0:
                stage(api, "a", "app@1", "p0", 1, 2)
                stage(api, "a", "app@2", "p0", 3)
                commit(api, "a", "app@1", "p0")
            if number == 1:
                assert commit(api, "a", "app@1", "p0").json["first_seq"] == 1
                assert commit(api, "a", "app@2", "p0").json["first_seq"] == 3
            assert data_of(api, "a") == ([1, 2] if number == 0 else [1, 2, 3])
        finally:
            engine.close()
