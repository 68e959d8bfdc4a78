"""A sink that stages, commits and tries again until it is told, over a server that is killed again and again: every
transaction is there once, in all of its topics, in order."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from tests.conftest import SEED
from tests.contract.http.live import ServerProcess
from topics.client import Client, RetryPolicy
from topics.model.errors import TopicsError
from topics.model.record import Record

pytestmark = pytest.mark.slow

_KILLS = 4
_TOPICS = ("a", "b", "c")


class Sink:
    """One stream of transactions `<app>@<n>`, each two records in each topic, tried again from its first part."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.version = 0
        self.told: dict[int, dict[str, int | None]] = {}

    def step(self, client: Client) -> None:
        txn = f"{self.app}@{self.version}"
        for topic in _TOPICS:
            for part in ("p0", "p1"):
                client.stage(topic, txn, part, [{"data": f"{txn} {part}", "tag": self.app}])
        done = client.commit_staged_topics(txn, {topic: ["p1", "p0"] for topic in _TOPICS}, query=self.app)
        self.told[self.version] = {topic: seqs.first_seq for topic, seqs in done.topics.items()}
        self.version += 1


def _run(server: ServerProcess, sinks: list[Sink], stop: threading.Event) -> list[threading.Thread]:
    def loop(sink: Sink) -> None:
        with Client(f"http://{server.host}:{server.port}", retry=RetryPolicy(deadline_s=0.2)) as client:
            while not stop.is_set():
                try:
                    sink.step(client)
                except TopicsError:
                    if server.process.poll() is not None:
                        return

    threads = [threading.Thread(target=loop, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    return threads


def test_transactions_over_killed_servers_happen_once(tmp_path: Path) -> None:
    rng = Random(SEED)
    sinks = [Sink("one"), Sink("two")]
    settings = {"TOPICS_WAL_SHARDS": "3", "TOPICS_CHECKPOINT_BYTES": "20000", "TOPICS_CHECKPOINT_GAP_MS": "20"}
    for life in range(_KILLS + 1):
        server = ServerProcess(tmp_path, **settings)
        stop = threading.Event()
        goal = [sink.version + rng.randint(4, 12) for sink in sinks]
        threads = _run(server, sinks, stop)
        while any(sink.version < wanted for sink, wanted in zip(sinks, goal, strict=True)):
            assert server.process.poll() is None, server.complaints
            threads[0].join(rng.random() / 50)
        if life < _KILLS:
            server.kill()
        stop.set()
        for thread in threads:
            thread.join()
    with Client(f"http://{server.host}:{server.port}") as client:
        for topic in _TOPICS:
            found = [(item.seq, item.data) for item in client.read(topic) if isinstance(item, Record)]
            for sink in sinks:
                mine = [(seq, data) for seq, data in found if data.startswith(f"{sink.app}@")]
                texts = [f"{sink.app}@{n} {part}" for n in range(sink.version) for part in ("p1", "p0")]
                assert [data for _, data in mine] == texts
                firsts = {n: mine[2 * n][0] for n in range(sink.version)}
                told = {n: seqs[topic] for n, seqs in sink.told.items()}
                assert all(told[n] in (firsts[n], None) for n in told)
        assert client.metrics_json()["stages_open"] == 0
    assert server.stop()[0] == 0
