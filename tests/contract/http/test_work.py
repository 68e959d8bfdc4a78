"""Jobs pushed over a stream of server-sent events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.http.client import Api, InProcess, eventually
from tests.contract.http.inprocess import Engine
from tests.contract.http.live import Http1, ServerProcess
from topics.api.app import AppOptions
from topics.api.auth import parse_keys


class Worker:
    """A worker's connection."""

    def __init__(self, server: ServerProcess, topic: str, node: str = "w", query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        self._connection.request("GET", f"/v0/topics/{topic}/work?node={node}{query}", headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.headers = self._answer.headers

    def block(self) -> dict[str, str]:
        """The fields of the next block; empty at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self._answer.readline():
            if line == b"\n":
                return fields
            name, _, value = line.decode().rstrip("\n").partition(": ")
            fields[name] = value
        return fields

    def job(self) -> dict[str, Any]:
        while True:
            block = self.block()
            if block.get("event") == "job":
                job: dict[str, Any] = json.loads(block["data"])
                assert block["id"] == str(job["$seq"])
                return job

    def leave(self) -> None:
        # The answer holds the socket too.
        self._answer.close()
        self._connection.close()


@pytest.fixture
def live(live_server: ServerProcess) -> Iterator[Api]:
    wire = Http1(live_server.host, live_server.port)
    yield Api(wire)
    wire.close()


def in_flight(api: Api, topic: str) -> int:
    count: int = api.state(topic)["queue"]["in_flight"]
    return count


def test_jobs_are_pushed_up_to_max_and_refilled_after_an_ack(live: Api, live_server: ServerProcess, topic: str) -> None:
    live.put(topic, type="queue", durable=True)
    live.append(topic, {"data": {"x": 1}, "tag": "t", "meta": {"m": 1}, "node": "maker"}, {"data": 2}, {"data": 3})
    worker = Worker(live_server, topic, query="&max=2&lease_ms=60000")
    assert (worker.status, worker.headers["content-type"]) == (200, "text/event-stream")
    assert worker.block() == {"retry": "2000"}
    job = worker.job()
    assert job.pop("deadline") >= job.pop("$ts") + 60_000
    assert job == {
        "topic": topic, "$seq": 1, "$tag": "t", "lease_id": "lease_1", "deliveries": 1, "data": {"x": 1},
        "meta": {"m": 1},
    }  # fmt: skip
    assert worker.job()["$seq"] == 2
    assert in_flight(live, topic) == 2
    assert live.call("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1, 2]}).json["acked"] == 2
    assert worker.job()["$seq"] == 3
    live.append(topic, 4)
    assert worker.job()["$seq"] == 4, "an append wakes the stream"
    worker.leave()


def test_a_worker_that_goes_gives_its_jobs_back_and_keeps_what_it_claimed(
    live: Api, live_server: ServerProcess, topic: str
) -> None:
    live.put(topic, type="queue")
    live.append(topic, 1, 2, 3)
    claimed = live.call("POST", f"/v0/topics/{topic}/claim", {"node": "w", "lease_ms": 600_000}).json["claimed"]
    worker = Worker(live_server, topic, query="&max=5&lease_ms=600000")
    assert [worker.job()["$seq"], worker.job()["$seq"]] == [2, 3]
    worker.leave()
    assert eventually(lambda: in_flight(live, topic) == 1)
    again = live.call("POST", f"/v0/topics/{topic}/claim", {"node": "other", "max": 9}).json["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in again] == [(2, 2), (3, 2)]
    assert live.call("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [claimed[0]["$seq"]]}).json["acked"] == 1


def test_an_expired_lease_makes_room_on_its_stream(live: Api, live_server: ServerProcess, topic: str) -> None:
    live.put(topic, type="queue")
    live.append(topic, 1)
    worker = Worker(live_server, topic, query="&lease_ms=100")
    assert [worker.job()["deliveries"] for _ in range(3)] == [1, 2, 3]
    worker.leave()


def test_streams_that_cannot_be_are_refused_in_the_order_of_the_contract(live: Api, topic: str) -> None:
    path = f"/v0/topics/{topic}/work"
    wanted = {"accept": "application/json"}
    assert live.call("GET", path, headers=wanted).problem == (406, "not_acceptable")
    for query in ("", "?node=", "?node=" + "x" * 129):
        assert live.call("GET", path + query).problem == (400, "invalid_request")
    assert live.call("GET", f"{path}?node=n", headers={"accept": "text/event-stream"}).problem == (
        404,
        "topic_not_found",
    )
    live.put(topic)
    assert live.call("GET", f"{path}?node=n").problem == (409, "not_a_queue")


def test_a_stream_ends_with_its_topic(live: Api, live_server: ServerProcess, topic: str) -> None:
    live.put(topic, type="queue")
    worker = Worker(live_server, topic)
    worker.block()
    live.call("DELETE", f"/v0/topics/{topic}")
    goodbye = worker.block()
    assert (goodbye["event"], "id" in goodbye) == ("error", False)
    said = json.loads(goodbye["data"])
    assert (said["code"], said["topic"], bool(said["error"])) == (409, topic, True)
    assert worker.block() == {}
    worker.leave()


def test_a_server_that_stops_says_so_and_gives_the_jobs_back(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    wire = Http1(server.host, server.port)
    api = Api(wire)
    api.put("q", type="queue", leases_durable=True)
    api.append("q", 1)
    worker = Worker(server, "q", query="&lease_ms=600000")
    assert worker.job()["$seq"] == 1
    wire.close()
    status, _, trouble = server.stop()
    assert (status, trouble) == (0, "")
    goodbye = worker.block()
    assert json.loads(goodbye["data"])["code"] == "server_shutting_down"
    worker.leave()
    again = ServerProcess(tmp_path)
    wire = Http1(again.host, again.port)
    (job,) = Api(wire).call("POST", "/v0/topics/q/claim", {"node": "x"}).json["claimed"]
    assert job["deliveries"] == 2
    wire.close()
    again.stop()


def test_the_key_of_a_stream_may_come_in_its_query(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path), AppOptions(version="test", keyring=parse_keys("k1:rw,k2:r")))
    nobody = Api(InProcess(engine))
    for query, status in (("", 401), ("&token=wrong", 401), ("&token=k2", 403), ("&token=k1&token=wrong", 404)):
        assert nobody.call("GET", f"/v0/topics/q/work?node=n{query}").status == status, query
    assert nobody.call("POST", "/v0/topics/q/claim?token=k1", {"node": "n"}).status == 401
    assert nobody.call("HEAD", "/v0/topics/q/work?node=n&token=k1").status == 401
    engine.close()
