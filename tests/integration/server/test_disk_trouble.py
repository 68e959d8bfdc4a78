"""A server whose disk is full or fails: writes are refused and told why, reads go on, health and metrics show it, and
room or a restart heals it without loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.contract.http.client import Api, InProcess, Reply, eventually
from tests.contract.http.inprocess import Engine
from tests.contract.http.live import Http1, ServerProcess
from tests.integration.small_disk import Ballast
from topics.host.fs import OsFs
from topics.model.errors import WriteFailed
from topics.storage.options import StoreOptions
from topics.testing.faults import Fault, FaultFs

pytestmark = pytest.mark.realdisk

SMALL = {
    "TOPICS_WAL_SHARDS": "2",
    "TOPICS_WAL_FILE_BYTES": "131072",
    "TOPICS_SEGMENT_MAX_EVENTS": "200",
    "TOPICS_CHECKPOINT_BYTES": str(1 << 40),
    "TOPICS_CHECKPOINT_MS": str(1 << 40),
}


class Journal:
    """What was answered, by topic and seq."""

    def __init__(self) -> None:
        self.acked: dict[tuple[str, int], str] = {}
        self.unknown: set[str] = set()

    def append(self, api: Api, topic: str, what: str) -> Reply:
        reply = api.append(topic, *({"data": f"{what}.{i}", "tag": "x" * 200} for i in range(3)))
        if reply.status in (200, 201):
            for i, seq in enumerate(reply.json["seqs"]):
                assert (topic, seq) not in self.acked, "a seq was given twice"
                self.acked[topic, seq] = f"{what}.{i}"
        elif reply.status == 500:
            self.unknown.add(what)
        return reply

    def check(self, api: Api) -> None:
        found: dict[tuple[str, int], str] = {}
        for topic in sorted({topic for topic, _ in self.acked}):
            from_seq = 1
            while True:
                page = api.call("GET", f"/v0/topics/{topic}/records?from_seq={from_seq}&limit=10000").json
                for record in page["records"]:
                    if "tombstone" in record:
                        # Seqs that were reserved, or handed out for appends that failed.
                        assert record["tombstone"]["reason"] == "crash"
                    else:
                        found[topic, record["$seq"]] = record["data"]
                from_seq = page["next_from_seq"]
                if from_seq > page["head_seq"]:
                    break
        assert {key: found.get(key) for key in self.acked} == self.acked
        more = {value.rpartition(".")[0] for key, value in found.items() if key not in self.acked}
        assert more <= self.unknown, "records were invented"


@pytest.fixture
def journal() -> Journal:
    return Journal()


def metric(api: Api, name: str) -> float:
    text = api.call("GET", "/v0/metrics").body.decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"topics_{name} ")).split()[1])


# -- a full disk -------------------------------------------------------------------------------------------------------


class OnSmallDisk:
    """Servers on the small disk, one after the other; their port file and complaints are elsewhere."""

    def __init__(self, directory: Path, disk: Path) -> None:
        self.directory, self.disk = directory, disk
        self.start()

    def start(self) -> None:
        self.server = ServerProcess(self.directory, TOPICS_DATA_DIR=str(self.disk / "data"), **SMALL)
        self.wire = Http1(self.server.host, self.server.port)
        self.api = Api(self.wire)

    def stop(self) -> tuple[int, str, str]:
        self.wire.close()
        return self.server.stop()

    def kill(self) -> None:
        self.wire.close()
        self.server.kill()


@pytest.fixture
def small(tmp_path: Path, disk: Path) -> Iterator[OnSmallDisk]:
    small = OnSmallDisk(tmp_path / "server", disk)
    yield small
    small.kill()


def fill(api: Api, journal: Journal, topic: str, prefix: str = "fill") -> Reply:
    """Append until the server refuses; its refusal."""
    for number in range(50_000):
        reply = journal.append(api, topic, f"{prefix}.{number}")
        if reply.status != 200:
            return reply
    raise AssertionError("the disk never became full")


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_full_disk_refuses_writes_with_the_remedy_and_heals(
    small: OnSmallDisk, ballast: Ballast, journal: Journal, durability: str
) -> None:
    api = small.api
    assert api.put("orders", durability=durability).status == 201
    assert journal.append(api, "orders", "first").status == 200
    ballast.leave(600_000)
    refusal = fill(api, journal, "orders")
    assert refusal.problem == (503, "disk_full")
    assert "free disk space" in refusal.json["error"]["message"]
    assert str(small.disk) not in refusal.body.decode(), "no path is told to clients"
    assert refusal.headers["retry-after"] == "1"
    head = api.state("orders")["head_seq"]
    for _ in range(5):
        assert journal.append(api, "orders", "refused").problem == (503, "disk_full")
    journal.check(api)
    assert api.diff("orders", from_seq=head).json["caught_up"] is True
    assert eventually(lambda: "free disk space to write again" in small.server.complaints), "it is in the log, too"
    health = api.call("GET", "/v0/health")
    assert (health.status, health.json["status"]) == (200, "degraded")
    assert {trouble["code"] for trouble in health.json["trouble"]} == {"disk_full"}
    assert metric(api, "wal_disk_full") == 1
    assert metric(api, "wal_read_only") == 0
    assert api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json["wal"]["disk_full"] is True
    ballast.drop()
    assert eventually(lambda: journal.append(api, "orders", f"healed.{time.monotonic()}").status == 200)
    assert journal.acked["orders", head + 1].startswith("healed"), "seqs of refused appends are given back"
    assert eventually(lambda: api.call("GET", "/v0/health").json["status"] == "ok")
    assert metric(api, "wal_disk_full") == 0
    for number in range(50):
        assert journal.append(api, "orders", f"after.{number}").status == 200
    journal.check(api)
    assert small.stop()[0] == 0
    small.start()
    journal.check(small.api)


def test_full_disk_and_a_kill_lose_nothing(small: OnSmallDisk, ballast: Ballast, journal: Journal) -> None:
    api = small.api
    api.put("orders", durability="fsync")
    api.put("jobs", durability="disk")
    journal.append(api, "jobs", "early")
    ballast.leave(500_000)
    fill(api, journal, "orders")
    fill(api, journal, "jobs", "job")
    small.kill()
    ballast.drop()
    small.start()
    journal.check(small.api)
    assert journal.append(small.api, "orders", "again").status == 200
    assert small.api.call("GET", "/v0/health").json["status"] == "ok"


def test_checkpoint_without_room_is_shown_and_made_later(
    small: OnSmallDisk, ballast: Ballast, journal: Journal
) -> None:
    api = small.api
    api.put("orders")
    for number in range(200):
        journal.append(api, "orders", f"before.{number}")
    ballast.leave(8192)
    api.call("POST", "/v0/admin/checkpoint")
    assert metric(api, "checkpoint_failed") == 1
    assert {"code": "checkpoint_failed"} in api.call("GET", "/v0/health").json["trouble"]
    journal.check(api)
    ballast.drop()
    assert api.call("POST", "/v0/admin/checkpoint").status == 200
    assert metric(api, "checkpoint_failed") == 0
    assert eventually(lambda: api.call("GET", "/v0/health").json["status"] == "ok")
    journal.check(api)


# -- a disk that fails -------------------------------------------------------------------------------------------------

NAMES = [f"t{number}" for number in range(12)]
TWO_SHARDS = StoreOptions(wal_shards=2, ttl_grace_ms=0, wal_file_bytes=1 << 20)


class Failing:
    """A server in process whose disk fails when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fs = FaultFs(OsFs())
        self.start()

    def start(self) -> None:
        self.engine = Engine(str(self.directory), store=TWO_SHARDS, fs=self.fs)
        self.api = Api(InProcess(self.engine))

    def shard_of(self, topic: str) -> int:
        return self.engine.store.topics[topic].shard

    def on(self, shard: int) -> list[str]:
        return [name for name in NAMES if self.shard_of(name) == shard]

    def break_shard(self, shard: int, call: str) -> None:
        self.fs.add(Fault(call, path=f"{self.engine.store.shards[shard].directory}/"))


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Failing]:
    failing = Failing(tmp_path / "store")
    yield failing
    failing.fs.heal()
    failing.engine.close()


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_failed_shard_is_read_only_and_the_other_goes_on(
    failing: Failing, journal: Journal, durability: str, call: str
) -> None:
    api = failing.api
    for name in NAMES:
        api.put(name, durability=durability)
        journal.append(api, name, "first")
    shard = failing.shard_of(NAMES[0])
    broken, sound = failing.on(shard), failing.on(1 - shard)
    assert len(sound) > 1
    failing.break_shard(shard, call)
    ended = eventually(lambda: journal.append(api, broken[0], f"fails.{time.monotonic()}").status != 200 or None)
    assert ended
    failing.fs.heal()
    config: dict[str, Any] = {"durability": durability, "cap_records": 1000}
    for name in broken:
        for reply in (
            journal.append(api, name, "refused"),
            api.delete(name, before_seq=2),
            api.call("PATCH", f"/v0/topics/{name}", config),
            api.call("DELETE", f"/v0/topics/{name}"),
        ):
            assert reply.problem == (503, "read_only"), name
            assert reply.detail["shard"] == shard
            assert reply.detail["since"] > 0
            assert reply.headers["retry-after"] == "1"
            assert str(failing.directory) not in reply.body.decode(), "no path is told to clients"
        assert api.state(name)["head_seq"] >= 3
        assert api.diff(name).json["records"][0]["data"] == "first.0"
    for name in sound:
        assert journal.append(api, name, "goes on").status == 200
    health = api.call("GET", "/v0/health").json
    assert health["status"] == "degraded"
    assert [(trouble["code"], trouble["shard"]) for trouble in health["trouble"]] == [("read_only", shard)]
    assert metric(api, "wal_read_only") == 1
    journal.check(api)
    # What `disk` acknowledged in front of the failure was never synced, and nobody was told so.
    with pytest.raises(WriteFailed, match="not synced") if durability == "disk" else nullcontext():
        failing.engine.close()
    failing.start()
    journal.check(failing.api)
    assert failing.api.call("GET", "/v0/health").json["status"] == "ok"
    for name in NAMES:
        assert journal.append(failing.api, name, "again").status == 200


def test_router_waits_for_a_read_only_dest_and_loses_nothing(failing: Failing, journal: Journal) -> None:
    api = failing.api
    for name in NAMES:
        api.put(name, durability="fsync")
    source = NAMES[0]
    dest = failing.on(1 - failing.shard_of(source))[0]
    api.call("PUT", "/v0/routers/copies", {"source": source, "dest": dest})
    journal.append(api, source, "before")
    assert len(api.diff(dest).json["records"]) == 3
    failing.break_shard(failing.shard_of(dest), "write")
    assert api.append(dest, "direct").status == 500
    failing.fs.heal()
    for number in range(5):
        assert journal.append(api, source, f"meanwhile.{number}").status == 200, "the source never waits for its dest"
    assert len(api.diff(dest).json["records"]) == 3
    failing.engine.close()
    failing.start()
    copies = [record["data"] for record in failing.api.diff(dest).json["records"] if record["data"] != "direct"]
    assert copies == [f"{what}.{i}" for what in ("before", *(f"meanwhile.{n}" for n in range(5))) for i in range(3)]
