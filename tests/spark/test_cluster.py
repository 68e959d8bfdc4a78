"""A standalone cluster of real processes, one of which dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import Server
from topics.spark.java import find_java

ROOT = Path(__file__).parents[2]


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
        self.workers = [
            self._start(
                name, "worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(place), self.master
            )
            for name in ("worker-1", "worker-2")
        ]
        wait_for(lambda: self._log("master").count("Registering worker") == 2, "the workers register")

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

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """The worker and its executors, at once."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end, f"waited two minutes until {what}"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_read_loses_and_repeats_nothing(
    cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    server.fill("far", 0, 400, durability="fsync")
    server.checkpoint()
    server.fill("far", 400, 100)
    started = tmp_path / "started"
    arguments = [cluster.master, server.url, "far", str(started)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.cluster_driver", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        wait_for(lambda: started.exists() or driver.poll() is not None, "a task is at work")
        cluster.kill(cluster.workers[0])
        out, complaints = driver.communicate(timeout=180)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
    assert driver.returncode == 0, complaints.decode()[-3000:]
    assert json.loads(out.decode().splitlines()[-1]) == list(range(1, 501))
