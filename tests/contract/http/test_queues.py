"""Queues: claiming, and what a holder does with what it claimed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.http.client import Api, InProcess, Reply, eventually
from tests.contract.http.inprocess import Engine


def queue(api: Api, topic: str, count: int = 0, **config: Any) -> None:
    assert api.put(topic, type="queue", **config).status == 201
    if count:
        assert api.append(topic, *range(1, count + 1)).status == 200


def post(api: Api, topic: str, verb: str, **body: Any) -> Reply:
    return api.call("POST", f"/v0/topics/{topic}/{verb}", body)


def claim(api: Api, topic: str, node: str = "n", **body: Any) -> list[dict[str, Any]]:
    reply = post(api, topic, "claim", node=node, **body)
    assert reply.status == 200, reply.body
    claimed: list[dict[str, Any]] = reply.json["claimed"]
    assert reply.json["count"] == len(claimed)
    assert [job["$seq"] for job in claimed] == sorted(job["$seq"] for job in claimed)
    return claimed


def seqs(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["$seq"] for job in jobs]


def counts(api: Api, topic: str) -> tuple[int, int, int]:
    state = api.state(topic)["queue"]
    return state["ready"], state["in_flight"], state["dead_lettered"]


def test_metrics_count_jobs_and_leases(api: Api, topic: str) -> None:
    queue(api, topic, 5)
    claim(api, topic, max=2)
    text = api.call("GET", "/v0/metrics").body.decode()
    assert f'topics_topic_queue_ready{{topic="{topic}"}} 3\n' in text
    assert f'topics_topic_queue_in_flight{{topic="{topic}"}} 2\n' in text
    shown = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json
    assert shown["queue_leases_in_flight"] >= 2
    assert shown["queue_topics"] >= 1


def test_metrics_count_leases_of_workers_that_died_as_over(engine: Engine, own: Api) -> None:
    queue(own, "q", 3)
    claim(own, "q", lease_ms=1000)
    engine.clock.advance(1001)
    text = own.call("GET", "/v0/metrics").body.decode()
    assert 'topics_topic_queue_ready{topic="q"} 3\n' in text
    assert 'topics_topic_queue_in_flight{topic="q"} 0\n' in text


# -- claim -------------------------------------------------------------------------------------------------------------


def test_a_claim_holds_no_more_than_a_diff_and_the_rest_stays_claimable(api: Api, topic: str) -> None:
    queue(api, topic, max_deliveries=5)
    for _ in range(6):
        assert api.append(topic, *["x" * 1_000_000] * 2).status == 200
    held = claim(api, topic, max=100)
    assert seqs(held) == list(range(1, 9))
    assert counts(api, topic) == (4, 8, 0)
    rest = claim(api, topic, "other", max=100)
    assert [(job["$seq"], job["deliveries"]) for job in rest] == [(9, 1), (10, 1), (11, 1), (12, 1)]
    for node, jobs in (("n", held), ("other", rest)):
        assert post(api, topic, "nack", node=node, seqs=seqs(jobs)).status == 200
    assert seqs(claim(api, topic, max=100)) == list(range(1, 9))
    assert counts(api, topic) == (4, 8, 0)
    assert [(job["$seq"], job["deliveries"]) for job in claim(api, topic, max=100)] == [
        (9, 2), (10, 2), (11, 2), (12, 2),
    ]  # fmt: skip


def test_a_claim_answers_jobs_with_their_lease(api: Api, topic: str) -> None:
    queue(api, topic)
    api.append(topic, {"data": {"x": 1}, "tag": "t", "node": "maker", "meta": {"m": 1}}, {"data": ',"$node":"x"'})
    reply = post(api, topic, "claim", node="n", max=5, lease_ms=5000)
    body = reply.json
    assert (body["topic"], body["count"], body["ready"]) == (topic, 2, 0)
    assert "performance" in body
    job = dict(body["claimed"][0])
    assert job.pop("deadline") - job.pop("$ts") >= 5000
    assert job == {"$seq": 1, "lease_id": "lease_1", "$tag": "t", "deliveries": 1, "data": {"x": 1}, "meta": {"m": 1}}
    assert body["claimed"][1]["data"] == ',"$node":"x"'
    assert body["claimed"][1]["lease_id"] == "lease_2"


def test_one_job_is_claimed_unless_more_are_asked_for(api: Api, topic: str) -> None:
    queue(api, topic, 3)
    assert seqs(claim(api, topic)) == [1]
    assert seqs(claim(api, topic, max=0)) == [2], "clamped to one"
    assert seqs(claim(api, topic, max=4_000_000_000)) == [3], "fewer than asked for is normal"
    assert claim(api, topic) == []


def test_lease_ids_are_hexadecimal_and_never_repeat(api: Api, topic: str) -> None:
    queue(api, topic, 20)
    ids = [job["lease_id"] for job in claim(api, topic, max=20)]
    assert ids == [f"lease_{number:x}" for number in range(1, 21)]


@pytest.mark.parametrize(("asked", "given"), [(1, 100), (10**12, 86_400_000)])
def test_lease_time_is_clamped(api: Api, topic: str, asked: int, given: int) -> None:
    queue(api, topic, 1)
    (job,) = claim(api, topic, lease_ms=asked)
    assert given <= job["deadline"] - job["$ts"] < given + 20_000


def test_the_topics_lease_time_is_the_default(api: Api, topic: str) -> None:
    queue(api, topic, 1, lease_ms=7_000_000)
    (job,) = claim(api, topic)
    assert 7_000_000 <= job["deadline"] - job["$ts"] < 7_020_000


def test_claims_pass_over_deleted_and_leased_jobs(api: Api, topic: str) -> None:
    queue(api, topic)
    api.append(topic, {"data": 1}, {"data": 2, "tag": "x"}, {"data": 3}, {"data": 4})
    assert seqs(claim(api, topic)) == [1]
    api.delete(topic, match="x")
    assert seqs(claim(api, topic, max=9)) == [3, 4]


def test_reading_touches_no_lease(api: Api, topic: str) -> None:
    queue(api, topic, 2)
    claim(api, topic)
    assert api.seqs(topic) == [1, 2]
    assert counts(api, topic) == (1, 1, 0)


def test_bad_claims_are_refused_in_the_order_of_the_contract(api: Api, topic: str) -> None:
    path = f"/v0/topics/{topic}/claim"
    json_type = {"content-type": "application/json"}
    assert api.call("POST", path, b"", json_type).problem == (400, "invalid_request")
    assert api.call("POST", path, b"{", json_type).problem == (400, "invalid_request")
    assert api.call("POST", path, {}).problem == (400, "invalid_request"), "no node at all is no shape"
    absent = api.call("POST", path, {"node": ""})
    assert (absent.problem, absent.detail) == ((404, "topic_not_found"), {"topic": topic})
    api.put(topic)
    log = api.call("POST", path, {"node": ""})
    assert (log.problem, log.detail) == ((409, "not_a_queue"), {"topic": topic})
    queue(api, f"{topic}.q")
    for node in ("", "x" * 129):
        assert post(api, f"{topic}.q", "claim", node=node).problem == (400, "invalid_request")
    assert post(api, f"{topic}.q", "claim", node="é" * 64).status == 200
    for body in ({"node": "n", "max": -1}, {"node": "n", "max": 1 << 32}, {"node": "n", "lease_ms": "x"}, {"node": 1}):
        assert api.call("POST", f"/v0/topics/{topic}.q/claim", body).problem == (400, "invalid_request")


@pytest.mark.parametrize(
    ("verb", "more"),
    [("claim", {}), ("ack", {"seqs": []}), ("nack", {"seqs": []}), ("extend", {"seqs": [], "lease_ms": 100})],
)
def test_every_queue_call_needs_a_queue(api: Api, topic: str, verb: str, more: dict[str, Any]) -> None:
    assert post(api, topic, verb, node="n", **more).problem == (404, "topic_not_found")
    api.put(topic)
    assert post(api, topic, verb, node="n", **more).problem == (409, "not_a_queue")


# -- ack, nack, extend -------------------------------------------------------------------------------------------------


def test_an_ack_deletes_the_job_silently(api: Api, topic: str) -> None:
    queue(api, topic, 3)
    claim(api, topic, max=2)
    reply = post(api, topic, "ack", node="n", seqs=[1, 2]).json
    assert {key: value for key, value in reply.items() if key != "performance"} == {
        "topic": topic, "acked": 2, "skipped": [], "why": {}, "ready": 1, "in_flight": 0,
    }  # fmt: skip
    page = api.diff(topic, from_seq=0).json
    assert ([record["$seq"] for record in page["records"]], page["tombstone"]) == ([3], None)
    assert api.state(topic)["count"] == 1


@pytest.mark.parametrize("api", ["http1", "http2"], indirect=True)
def test_an_ack_that_was_synced_says_how_long_that_took(api: Api, topic: str) -> None:
    for durability in ("fsync", "disk"):
        name = f"{topic}-{durability}"
        api.put(name, type="queue", durability=durability)
        api.append(name, 1, 2, 3)
        post(api, name, "claim", node="n", max=3)
        for seq in (1, 2, 3):  # the same head again goes a shorter way
            spent = post(api, name, "ack", node="n", seqs=[seq]).json["performance"]
            assert ("fsync_ms" in spent) == (durability == "fsync")
            assert 0 <= spent.get("fsync_ms", 0.0) <= spent["server_total_ms"]
        assert "fsync_ms" not in post(api, name, "ack", node="n", seqs=[1]).json["performance"], "nothing was acked"


def test_only_the_holder_acts_and_every_reason_has_its_name(api: Api, topic: str) -> None:
    queue(api, topic, 4)
    first, second = claim(api, topic, "a", max=2)
    claim(api, topic, "b", max=1)
    reply = post(
        api, topic, "ack", node="a", seqs=[3, 4, 99, 2, 1, 1], lease_ids=["", "", "", "lease_77", first["lease_id"], ""]
    ).json
    assert (reply["acked"], reply["skipped"]) == (1, [3, 4, 99, 2, 1])
    assert reply["why"] == {"3": "member", "4": "unknown", "99": "unknown", "2": "token", "1": "settled"}
    assert post(api, topic, "ack", node="a", seqs=[1]).json["why"] == {"1": "settled"}
    upper = second["lease_id"].replace("lease_", "lease_00").upper().replace("LEASE", "lease")
    assert post(api, topic, "ack", node="a", seqs=[2], lease_ids=[upper]).json["acked"] == 1
    assert counts(api, topic) == (1, 1, 0)


def test_a_nacked_job_comes_back_first_with_its_count(api: Api, topic: str) -> None:
    queue(api, topic, 3)
    claim(api, topic, max=2)
    reply = post(api, topic, "nack", node="n", seqs=[2, 77]).json
    assert (reply["nacked"], reply["skipped"], reply["ready"], reply["in_flight"]) == (1, [77], 2, 1)
    (job,) = claim(api, topic, "other")
    assert (job["$seq"], job["deliveries"]) == (2, 2)
    assert post(api, topic, "ack", node="n", seqs=[2]).json["why"] == {"2": "member"}


def test_extending_answers_the_new_deadlines(api: Api, topic: str) -> None:
    queue(api, topic, 2)
    jobs = claim(api, topic, max=2, lease_ms=1000)
    reply = post(api, topic, "extend", node="n", seqs=[1, 2, 77], lease_ms=60_000).json
    assert (reply["extended"], reply["skipped"]) == (2, [77])
    assert reply["why"] == {"77": "unknown"}
    assert set(reply["deadlines"]) == {"1", "2"}
    assert all(deadline >= jobs[0]["deadline"] + 58_000 for deadline in reply["deadlines"].values())


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_bad_lease_calls_are_refused_and_change_nothing(api: Api, topic: str, verb: str) -> None:
    more = {"lease_ms": 1000} if verb == "extend" else {}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"seqs": [1]}, "invalid_request"),
        ({"node": "n"}, "invalid_request"),
        ({"node": "n", "seqs": [-1]}, "invalid_request"),
        ({"node": "n", "seqs": [1 << 64]}, "invalid_request"),
        ({"node": "", "seqs": [1], "lease_ids": ["lease_x"]}, "invalid_request"),
        ({"node": "n", "seqs": [1], "lease_ids": ["1"]}, "invalid_request"),
        ({"node": "n", "seqs": [1], "lease_ids": ["lease_"]}, "invalid_request"),
        ({"node": "n", "seqs": [1], "lease_ids": ["lease_" + "f" * 17]}, "invalid_request"),
        ({"node": "n", "seqs": [1], "lease_ids": ["lease_0x1"]}, "invalid_request"),
        ({"node": "", "seqs": [1] * 1001}, "invalid_request"),
        ({"node": "n", "seqs": [1] * 1001, "lease_ids": ["lease_1"]}, "batch_too_large"),
        ({"node": "n", "seqs": [1, 2], "lease_ids": ["lease_1"]}, "invalid_request"),
    ]
    for body, code in bad:
        reply = post(api, topic, verb, **body, **more)
        assert reply.problem == (400, code), (body, reply.body)
    reply = post(api, topic, verb, node="n", seqs=[1] * 1001, **more)
    assert reply.detail == {"seqs": 1001, "max": 1000}
    queue(api, topic, 1)
    claim(api, topic)
    for body, code in bad:
        assert post(api, topic, verb, **body, **more).problem == (400, code)
    assert counts(api, topic) == (0, 1, 0)
    assert post(api, topic, verb, node="n", seqs=[], **more).status == 200, "an empty list is a no-op"
    if verb == "extend":
        assert post(api, topic, verb, node="n", seqs=[1]).problem == (400, "invalid_request")


def test_a_lease_on_a_deleted_record_is_still_its_holders_to_end(api: Api, topic: str) -> None:
    queue(api, topic, 2)
    claim(api, topic, max=2)
    api.delete(topic, before_seq=3)
    assert counts(api, topic) == (0, 0, 0), "in flight are leases on live records"
    assert post(api, topic, "ack", node="n", seqs=[1, 2]).json["acked"] == 2
    assert post(api, topic, "ack", node="n", seqs=[1]).json["acked"] == 0


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_nobodys_and_its_job_comes_first(engine: Engine, own: Api) -> None:
    queue(own, "q", 2)
    claim(own, "q", "a", lease_ms=1000)
    engine.clock.advance(1100)
    for verb in ("ack", "nack", "extend"):
        reply = post(own, "q", verb, node="a", seqs=[1], **({"lease_ms": 100} if verb == "extend" else {})).json
        assert (reply["skipped"], reply["why"]) == ([1], {"1": "expired"}), "even if nobody claimed it again"
    assert counts(own, "q") == (2, 0, 0)
    jobs = claim(own, "q", "b", max=2)
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 1)]


def test_a_delayed_nack_is_claimable_when_its_time_has_come(engine: Engine, own: Api) -> None:
    queue(own, "q", 1)
    claim(own, "q")
    assert post(own, "q", "nack", node="n", seqs=[1], delay_ms=5000).json["ready"] == 0
    assert claim(own, "q") == []
    engine.clock.advance(5001)
    assert claim(own, "q")[0]["deliveries"] == 2


def test_an_extended_lease_lives_on(engine: Engine, own: Api) -> None:
    queue(own, "q", 1)
    claim(own, "q", lease_ms=1000)
    post(own, "q", "extend", node="n", seqs=[1], lease_ms=10_000)
    engine.clock.advance(5000)
    assert claim(own, "q", "other") == []
    assert post(own, "q", "ack", node="n", seqs=[1]).json["acked"] == 1


def test_a_delay_is_capped_at_a_day(engine: Engine, own: Api) -> None:
    queue(own, "q", 1)
    claim(own, "q")
    post(own, "q", "nack", node="n", seqs=[1], delay_ms=1 << 60)
    engine.clock.advance(86_400_001)
    assert seqs(claim(own, "q")) == [1]


# -- delays of an append -----------------------------------------------------------------------------------------------


def test_a_delayed_append_is_readable_and_not_claimable(engine: Engine, own: Api) -> None:
    queue(own, "q")
    own.append("q", {"data": 1, "delay_ms": 5000}, {"data": 2}, {"data": 3, "delay_ms": 0})
    assert own.seqs("q") == [1, 2, 3]
    assert counts(own, "q") == (2, 0, 0)
    assert seqs(claim(own, "q", max=9)) == [2, 3]
    engine.clock.advance(5001)
    (job,) = claim(own, "q", max=9)
    assert (job["$seq"], job["deliveries"]) == (1, 1)


def test_a_log_takes_no_delay_and_no_append_a_silly_one(api: Api, topic: str) -> None:
    api.put(topic)
    assert api.append(topic, {"data": 1, "delay_ms": 5}).problem == (400, "invalid_request")
    assert api.state(topic)["count"] == 0
    queue(api, f"{topic}.q")
    for delay in (-1, 86_400_001, "x", 1.5):
        assert api.append(f"{topic}.q", {"data": 1, "delay_ms": delay}).problem == (400, "invalid_request")


def test_a_delay_of_nothing_delays_nothing(own: Api) -> None:
    queue(own, "q")
    assert own.append("q", {"data": 1, "delay_ms": 0}).status == 200
    assert seqs(claim(own, "q")) == [1]


def test_lines_carry_delays_too(own: Api) -> None:
    queue(own, "q")
    lines = b'{"data":1,"delay_ms":60000}\n{"data":2}\n'
    assert own.call("POST", "/v0/topics/q", lines, {"content-type": "application/x-ndjson"}).status == 200
    assert seqs(claim(own, "q", max=9)) == [2]


# -- dead letters ------------------------------------------------------------------------------------------------------


def fail(api: Api, topic: str, times: int) -> None:
    for _ in range(times):
        jobs = claim(api, topic)
        post(api, topic, "nack", node="n", seqs=seqs(jobs))


def test_a_job_handed_out_too_often_goes_to_the_dead_letters_with_its_history(api: Api, topic: str) -> None:
    queue(api, topic, max_deliveries=2, dead_letter=f"{topic}.dead")
    api.append(topic, {"data": {"x": 1}, "tag": "t", "node": "maker", "meta": {"m": [1]}}, {"data": 2})
    fail(api, topic, 2)
    assert seqs(claim(api, topic)) == [2], "the claim goes on with the next job"
    assert counts(api, topic) == (0, 1, 1)
    (letter,) = api.diff(f"{topic}.dead", include_tags=True).json["records"]
    del letter["$ts"]
    assert letter == {
        "$seq": 1, "$tag": "t", "$node": "maker", "data": {"x": 1},
        "meta": {
            "m": [1], "$dead_letter_from": topic, "$dead_letter_deliveries": "2", "$dead_letter_src_seq": "1",
        },
    }  # fmt: skip
    assert api.seqs(topic) == [2]
    assert api.state(f"{topic}.dead")["type"] == "log", "made with defaults"


def test_a_meta_that_is_no_object_is_dropped_from_a_dead_letter(api: Api, topic: str) -> None:
    queue(api, topic, max_deliveries=1, dead_letter=f"{topic}.dead")
    api.append(topic, {"data": 1, "meta": [1, 2]})
    fail(api, topic, 1)
    assert claim(api, topic) == []
    (letter,) = api.diff(f"{topic}.dead").json["records"]
    assert set(letter["meta"]) == {"$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"}


def test_without_a_limit_or_a_place_jobs_come_back_for_ever(api: Api, topic: str) -> None:
    queue(api, topic, 1, max_deliveries=1)
    fail(api, topic, 3)
    assert claim(api, topic)[0]["deliveries"] == 4


def test_a_full_dead_letter_topic_takes_them_all_the_same(api: Api, topic: str) -> None:
    dead = f"{topic}.dead"
    api.put(dead, cap_records=1, discard="reject")
    api.append(dead, "full")
    queue(api, topic, 1, max_deliveries=1, dead_letter=dead)
    fail(api, topic, 1)
    claim(api, topic)
    assert api.state(dead)["count"] == 2


def test_a_dead_letter_that_finds_no_room_is_a_job_again(engine: Engine, own: Api) -> None:
    queue(own, "q", max_deliveries=1, dead_letter="dead")
    own.append("q", "x" * 100)
    fail(own, "q", 1)
    engine.store.ledger.bytes_max = 110
    assert claim(own, "q") == []
    (job,) = claim(own, "q")
    assert job["deliveries"] == 1, "it begins to count anew"
    assert counts(own, "q") == (0, 1, 0)
    engine.store.ledger.bytes_max = 0
    post(own, "q", "nack", node="n", seqs=[1])
    assert claim(own, "q") == []
    assert counts(own, "q") == (0, 0, 1)


def test_a_job_that_got_to_the_dead_letters_is_no_job_again_because_another_finds_no_room(
    engine: Engine, own: Api
) -> None:
    queue(own, "q", max_deliveries=1, dead_letter="dead")
    own.append("q", "x" * 100, "y" * 300, "z" * 100)
    post(own, "q", "nack", node="n", seqs=seqs(claim(own, "q", max=9)))
    engine.store.ledger.bytes_max = 1000
    assert claim(own, "q", max=9) == []
    assert [letter["data"][0] for letter in own.diff("dead").json["records"]] == ["x", "z"]
    assert seqs(claim(own, "q", max=9)) == [2]
    assert counts(own, "q") == (0, 1, 2)


def test_dead_letters_go_back_where_they_came_from(api: Api, topic: str) -> None:
    dead = f"{topic}.dead"
    queue(api, topic, max_deliveries=1, dead_letter=dead)
    api.append(topic, {"data": 1, "tag": "t", "meta": {"m": 1}}, {"data": 2}, {"data": 3})
    for _ in range(3):
        fail(api, topic, 1)
    claim(api, topic)
    api.append(dead, "no letter")
    path = f"/v0/topics/{dead}/redrive"
    assert api.call("POST", path, {"dry_run": True}).json["moved"] == 3
    reply = api.call("POST", path, {"max": 2, "rate_per_s": 1000}).json
    assert (reply["moved"], reply["left"]) == (2, 1)
    jobs = claim(api, topic, max=9)
    assert [(job["data"], job["deliveries"], job.get("meta")) for job in jobs] == [(1, 1, {"m": 1}), (2, 1, None)]
    assert jobs[0]["$tag"] == "t"
    assert api.call("POST", path, {}).json["moved"] == 1
    assert [record["data"] for record in api.diff(dead).json["records"]] == ["no letter"]
    assert api.call("POST", path).json["moved"] == 0


def test_dead_letters_go_elsewhere_if_told(api: Api, topic: str) -> None:
    dead = f"{topic}.dead"
    queue(api, topic, 1, max_deliveries=1, dead_letter=dead)
    fail(api, topic, 1)
    claim(api, topic)
    assert api.call("POST", f"/v0/topics/{dead}/redrive", {"to": f"{topic}.gone"}).problem == (404, "topic_not_found")
    queue(api, f"{topic}.other")
    assert api.call("POST", f"/v0/topics/{dead}/redrive", {"to": f"{topic}.other"}).json["moved"] == 1
    assert len(claim(api, f"{topic}.other")) == 1


# -- cohorts -----------------------------------------------------------------------------------------------------------


def test_claims_within_the_window_share_evenly_each_with_its_own_lease(engine: Engine, own: Api) -> None:
    queue(own, "q", 20, claim_jitter_ms=300)
    with ThreadPoolExecutor(4) as pool:
        asked = [(f"n{number}", 60_000 * (number + 1)) for number in range(4)]
        hands = list(pool.map(lambda ask: claim(own, "q", ask[0], max=10, lease_ms=ask[1]), asked))
    assert [len(hand) for hand in hands] == [5, 5, 5, 5]
    assert sorted(seq for hand in hands for seq in seqs(hand)) == list(range(1, 21))
    firsts = sorted(hand[0]["$seq"] for hand in hands)
    assert firsts == [1, 2, 3, 4], "one at a time, round robin"
    spans = sorted(hand[0]["deadline"] - hand[0]["$ts"] for hand in hands)
    assert all(span >= 60_000 * (at + 1) for at, span in enumerate(spans))
    assert spans[0] < 90_000


def test_a_cohort_whose_topic_goes_is_told_so(engine: Engine, own: Api) -> None:
    queue(own, "q", 3, claim_jitter_ms=400)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(post, own, "q", "claim", node=f"n{number}") for number in range(2)]
        cohorts = engine.service.broker.queues._cohorts
        assert eventually(lambda: sum(len(cohort.members) for cohort in cohorts.values()) == 2)
        own.call("DELETE", "/v0/topics/q")
        queue(own, "q", 1)
        assert {call.result().problem for call in waiting} == {(404, "topic_not_found")}
    assert len(claim(own, "q")) == 1


# -- restarts ----------------------------------------------------------------------------------------------------------


def reopened(engine: Engine, path: str) -> tuple[Engine, Api]:
    engine.close()
    again = Engine(path)
    again.clock.advance(engine.clock._ahead_ms)
    return again, Api(InProcess(again))


@pytest.mark.parametrize("durable", [False, True])
def test_counts_delays_and_dead_letters_survive_a_clean_restart(tmp_path: Any, durable: bool) -> None:
    path = str(tmp_path / "store")
    engine = Engine(path)
    own = Api(InProcess(engine))
    queue(own, "q", 3, leases_durable=durable, max_deliveries=1, dead_letter="dead")
    fail(own, "q", 1)
    (held,) = claim(own, "q", lease_ms=600_000)  # and the first goes to the dead letters
    own.append("q", {"data": "late", "delay_ms": 600_000})
    try:
        engine, own = reopened(engine, path)
        assert counts(own, "q") == ((1, 1, 1) if durable else (2, 0, 1))
        reply = post(own, "q", "ack", node="n", seqs=[2], lease_ids=[held["lease_id"]]).json
        assert reply["acked"] == int(durable)
        jobs = claim(own, "q", max=9)
        assert seqs(jobs) == [3], "the one whose deliveries were used up is a dead letter where its lease did not hold"
        assert int(jobs[0]["lease_id"].removeprefix("lease_"), 16) > int(held["lease_id"].removeprefix("lease_"), 16)
        assert counts(own, "q") == (0, 1, 1 if durable else 2)
        assert json.loads(own.diff("q").body)["head_seq"] == 4
    finally:
        engine.close()
