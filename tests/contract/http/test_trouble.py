"""Disk trouble, a stop, a kill: what clients are told, and what is there afterwards."""

from __future__ import annotations

import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.contract.http.client import Api, InProcess, eventually
from tests.contract.http.inprocess import Engine
from tests.contract.http.live import Http1, ServerProcess
from topics.api.problems import STATUS, problem, status_of
from topics.host.fs import OsFs
from topics.model import errors
from topics.model.errors import TopicsError
from topics.storage.options import StoreOptions
from topics.testing.faults import Fault, FaultFs


def tree(kind: type[TopicsError]) -> list[type[TopicsError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in tree(below))]


def made(kind: type[TopicsError]) -> TopicsError:
    match kind.__name__:
        case "InvalidRecord":
            return errors.InvalidRecord(0, "why")
        case "TopicNotFound" | "RouterNotFound":
            return kind("name")
        case "GroupNotFound":
            return errors.GroupNotFound("name", "group")
        case "CorruptFile" | "CorruptRecord":
            return kind("/some/where/topics/7/seg-1.data", 5, "why")  # type: ignore[call-arg]
        case _:
            return kind("message")


@pytest.mark.parametrize("kind", tree(TopicsError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_and_a_body(kind: type[TopicsError]) -> None:
    error = made(kind)
    answer = problem(error)
    assert answer.status == status_of(error)
    assert answer.status in {400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 416, 422, 429, 500, 503}
    assert kind in STATUS or kind.__mro__[1] is not object
    assert b"/some/where" not in answer.body


def test_failed_write_stops_its_shard_and_not_the_others(tmp_path: Path) -> None:
    fs = FaultFs(OsFs())
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(wal_shards=2, ttl_grace_ms=0), fs=fs)
    try:
        api = Api(InProcess(engine))
        names = [f"t{i}" for i in range(8)]
        for name in names:
            api.append(name, 1, config={"durability": "fsync"})
        broken = engine.store.topics["t0"].shard
        directory = engine.store.shards[broken].directory
        fs.add(Fault("write", path=f"{directory}/"))
        assert api.append("t0", 2).status == 500
        fs.heal()
        for name in names:
            on_broken = engine.store.topics[name].shard == broken
            answer = api.append(name, 3)
            if on_broken:
                assert answer.problem == (503, "read_only")
                assert answer.detail["shard"] == broken
                assert answer.detail["since"] > 0
            else:
                assert answer.status == 200
            assert api.diff(name).json["records"][0]["data"] == 1
        assert "\ntopics_wal_read_only 1\n" in api.call("GET", "/v0/metrics").body.decode()
        assert api.call("GET", "/v0/health").status == 200
    finally:
        engine.close()
    engine = Engine(str(tmp_path / "s"), store=StoreOptions(wal_shards=2))
    try:
        api = Api(InProcess(engine))
        assert api.append("t0", 4).status == 200
        assert api.diff("t0").json["records"][0]["data"] == 1
    finally:
        engine.close()


def test_damage_is_told_without_naming_places_of_this_machine() -> None:
    answer = problem(made(errors.CorruptFile))
    assert answer.status == 500
    body = msgspec.json.decode(answer.body)["error"]
    assert (body["code"], body["detail"]) == ("storage_damaged", {"file": "7/seg-1.data", "offset": 5})


@pytest.mark.parametrize("size", [10, 1000])
def test_segment_whose_file_is_missing_is_damage_that_names_it(tmp_path: Path, size: int) -> None:
    options = StoreOptions(segment_max_events=400)
    engine = Engine(str(tmp_path / "s"), store=options)
    try:
        api = Api(InProcess(engine))
        api.append("a", *("x" * size for _ in range(400)), query="?return_seqs=false")
        api.call("POST", "/v0/admin/checkpoint")
        (segment,) = api.call("GET", "/v0/topics/a/segments").json["segments"]
        target = "/v0/topics/a/segments/1/data"
        Path(segment["path"]).unlink()
        answer = api.call("GET", target)
        assert answer.problem == (500, "storage_damaged")
        file = "/".join(segment["path"].split("/")[-2:])
        assert answer.detail == {"file": file, "offset": 0, "topic": "a", "first_seq": 1}
        assert "restore the file from a backup" in answer.json["error"]["message"]
        assert str(tmp_path) not in answer.body.decode()
        api.delete("a", before_seq=401)
        api.call("POST", "/v0/admin/checkpoint")
        assert api.call("GET", target).problem == (404, "segment_gone")
    finally:
        engine.close()


def test_full_disk_is_said_and_heals_when_space_returns(tmp_path: Path) -> None:
    fs = FaultFs(OsFs())
    options = StoreOptions(wal_file_bytes=20_000, ttl_grace_ms=0, checkpoint_bytes=1 << 30)
    engine = Engine(str(tmp_path / "s"), store=options, fs=fs)
    try:
        api = Api(InProcess(engine))
        api.append("a", 1, config={"durability": "fsync"})
        fs.add(Fault("open", error="ENOSPC", forever=True, path=".pre"))
        answers = [api.append("a", "x" * 1000) for _ in range(60)]
        refused = next(answer for answer in answers if answer.status != 200)
        assert refused.problem == (503, "disk_full")
        assert "free disk space" in refused.json["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert "\ntopics_wal_disk_full 1\n" in api.call("GET", "/v0/metrics").body.decode()
        kept = sum(answer.status == 200 for answer in answers)
        assert api.state("a")["count"] == kept + 1
        assert len(api.seqs("a", limit=1000)) == kept + 1
        fs.heal()
        assert eventually(lambda: api.append("a", 2).status == 200)
    finally:
        engine.close()
    engine = Engine(str(tmp_path / "s"))
    try:
        assert Api(InProcess(engine)).state("a")["count"] >= kept + 2
    finally:
        engine.close()


def test_stop_answers_parked_polls_and_exits_clean(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    wire = Http1(server.host, server.port)
    api = Api(wire)
    api.append("a", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.diff, "a", from_seq=1, wait_ms=30_000)
        time.sleep(0.2)
        started = time.monotonic()
        status, said, trouble = server.stop()
        assert waiting.result(5).json["caught_up"] is True
    wire.close()
    assert (status, trouble) == (0, "")
    assert time.monotonic() - started < 10
    (line,) = said.splitlines()
    assert f"{server.host}:{server.port}" in line
    assert "no keys" in line
    assert "curl" in line
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_kill_keeps_every_acked_record(tmp_path: Path) -> None:
    acked: dict[str, int] = {}
    for cycle in range(3):
        server = ServerProcess(tmp_path, TOPICS_WAL_SHARDS=str(1 + cycle % 2), TOPICS_SEGMENT_MAX_EVENTS="50")
        wire = Http1(server.host, server.port)
        api = Api(wire)
        for name, seq in acked.items():
            page = api.call("GET", f"/v0/topics/{name}/records?limit=10000").json
            data = {record["$seq"]: record["data"] for record in page["records"] if "$seq" in record}
            assert all(data[number] == number for number in range(1, seq + 1)), (cycle, name)
        for number in range(60):
            name = f"t{number % 3}"
            seq = api.append(name, acked.get(name, 0) + 1, config={"durability": "fsync"}).json["last_seq"]
            assert seq == acked.get(name, 0) + 1
            acked[name] = seq
        wire.close()
        server.kill()


def test_second_server_on_one_directory_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with pytest.raises(AssertionError, match=r"\.topics\.lock"):
        ServerProcess(tmp_path)
    assert server.stop()[0] == 0


def test_binding_beyond_loopback_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="TOPICS_API_KEYS"):
        ServerProcess(tmp_path, TOPICS_HOST="0.0.0.0")


def test_no_token_reaches_the_output(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_API_KEYS="open-sesame")
    wire = Http1(server.host, server.port)
    for token in ("open-sesame", "swordfish"):
        Api(wire, token).append("a", 1)
        Api(wire, token).call("POST", f"/v0/topics/a?token={token}", b"{", {"content-type": "application/json"})
        Api(wire, token).call("GET", "/v0/nope")
    wire.close()
    status, said, trouble = server.stop()
    assert status == 0
    assert "sesame" not in said + trouble
    assert "swordfish" not in said + trouble


def test_start_line_names_the_directory_as_it_was_given(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_DATA_DIR="./topics-data")
    status, said, _ = server.stop()
    version = said.split()[1]
    address = f"http://{server.host}:{server.port}"
    assert (status, said) == (
        0,
        f"topics {version} serves ./topics-data at {address} (new topics are of class disk; no keys: anyone on this "
        f"machine may do anything). Try: curl {address}/v0/topics\n",
    )


def test_slow_heads_and_idle_connections_are_ended_as_configured(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_HEADER_TIMEOUT_MS="200", TOPICS_IDLE_TIMEOUT_MS="200")
    for sent in (b"GET /v0/health HT", b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n"):
        with socket.create_connection((server.host, server.port), timeout=120) as wire:
            wire.sendall(sent)
            answer = b"".join(iter(partial(wire.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 408" if sent.endswith(b"HT") else b"HTTP/1.1 200")
    server.kill()


def test_large_bodies_share_a_budget_of_memory(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_MAX_INFLIGHT_BODY_BYTES="300000")
    wire = Http1(server.host, server.port)
    api = Api(wire)
    body = json.dumps({"records": [{"data": "x" * 250_000}]}).encode()
    head = "POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    with socket.create_connection((server.host, server.port), timeout=120) as slow:
        slow.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body[:-10])
        refused = eventually(lambda: (answer := api.append("b", "x" * 250_000)).status == 429 and answer)
        assert (refused.code, refused.detail) == ("throttled", {"limit": "max_inflight_body_bytes", "max": 300_000})
        assert refused.headers["retry-after"] == "1"
        packed = {"content-type": "application/json", "content-encoding": "gzip"}
        assert api.call("POST", "/v0/topics/b", gzip.compress(body), packed).problem == (429, "throttled")
        assert api.append("b", "small").status in (200, 201)
        slow.sendall(body[-10:])
        assert slow.recv(65536).startswith(b"HTTP/1.1 201")
    assert api.append("b", "x" * 250_000).status == 200
    assert api.append("b", "x" * 400_000).status == 200, "one by itself always passes"
    wire.close()
    server.kill()


def test_keys_and_limits_come_from_the_environment(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_API_KEYS="k:rw+a", TOPICS_MAX_BODY_BYTES="200", TOPICS_MAX_TOTAL_BYTES="5")
    wire = Http1(server.host, server.port)
    api = Api(wire, "k")
    assert api.append("a", 1).status == 201
    assert api.append("a", "x" * 300).problem == (413, "payload_too_large")
    assert api.append("a", "12345").problem == (429, "throttled")
    assert Api(wire).append("a", 1).problem == (401, "unauthorized")
    assert eventually(lambda: api.call("GET", "/v0/ready").status == 200)
    wire.close()
    status, said, trouble = server.stop()
    assert (status, trouble) == (0, "")
    assert "keys are set" in said
