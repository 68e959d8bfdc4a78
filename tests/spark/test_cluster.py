"""A standalone cluster of real processes, one of which dies in the middle of a read or a write."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import Server
from tests.spark.proxy import kill_session, process_of, proxied
from tests.spark.works import Work
from topics.spark.java import find_java

ROOT = Path(__file__).parents[2]
WAIT_S = 300.0


class Cluster:
    """A master and two workers with a core each, on loopback, every one in a process group of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._home = Path(str(pyspark.__file__)).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "master.Master", "--port", str(port))
        self._workers: list[subprocess.Popen[bytes]] = []
        self.complete()

    def complete(self) -> None:
        """Two workers live, whatever became of those before them."""
        missing = 2 - sum(worker.poll() is None for worker in self._workers)
        for number in range(len(self._workers) + 1, len(self._workers) + missing + 1):
            role = ("worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(self._place), self.master)
            self._workers.append(self._start(f"worker-{number}", *role))
        # A worker that was answered late registers once more.
        ever, line = len(self._workers), re.compile(r"Registering worker (\S+)")
        wait_for(lambda: len(set(line.findall(self._log("master")))) == ever, "the workers register")

    def _start(self, name: str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = find_java(os.environ)
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        if java.home is not None:
            environ["JAVA_HOME"] = java.home
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
        # The class of Spark's logger that says who registers is quiet without this.
        config = self._place / "log4j2.properties"
        config.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.stdout.ref = console\nappender.console.type = Console\n"
            "appender.console.name = console\nappender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %m%n\n"
        )
        environ["SPARK_MASTER_OPTS"] = environ["SPARK_WORKER_OPTS"] = f"-Dlog4j2.configurationFile={config}"
        with (self._place / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments], env=environ, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def _log(self, name: str) -> str:
        return (self._place / f"{name}.log").read_text(errors="replace")

    def kill_worker(self, process: int | None = None) -> None:
        """One with its executors and all their processes, at once: the one that a process belongs to, or any."""
        session = (
            next(one.pid for one in self._workers if one.poll() is None) if process is None else os.getsid(process)
        )
        (worker,) = (one for one in self._workers if one.pid == session)
        kill_session(worker.pid)
        worker.wait()

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                kill_session(process.pid)
                process.wait()


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, f"waited five minutes until {what}"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_workers_killed_in_the_middle_of_a_read_and_of_a_write_lose_and_repeat_nothing(
    cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    server.fill("far", 0, 400, durability="fsync")
    server.checkpoint()
    server.fill("far", 400, 100)
    started, complaints = tmp_path / "started", tmp_path / "complaints"
    with proxied(server) as proxy, complaints.open("wb") as stderr:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_driver", cluster.master, proxy.url, "far", str(started)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: started.exists() or driver.poll() is not None, "a task is at work")
            cluster.kill_worker()
            assert driver.stdout is not None
            seqs = driver.stdout.readline()
            cluster.complete()
            work = Work("far-write", "batch-of-two", proxy.url, tmp_path)
            aim = proxy.aim(
                work.app, "a part is stored", lambda port: cluster.kill_worker(process_of(port, proxy.port))
            )
            driver.communicate(b"now write\n", timeout=2 * WAIT_S)
        finally:
            if driver.poll() is None:
                kill_session(driver.pid)
                driver.communicate()
    assert driver.returncode == 0, complaints.read_text()[-3000:]
    assert json.loads(seqs) == list(range(1, 501))
    assert aim.met.is_set()
    assert work.found(server.client) == work.wanted
