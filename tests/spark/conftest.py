"""One Spark session for all tests of a run, and servers for it to read from.

A session costs half a minute on a busy machine, so every test here must run in one process: all of them carry the same
xdist group (`--dist loadgroup`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.http.live import ServerProcess
from topics.client.sync import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
SMALL = {"TOPICS_SEGMENT_MAX_EVENTS": "50"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            # Spark and its libraries warn of their own ways; what we do wrong shows in the results.
            item.add_marker(pytest.mark.filterwarnings("default"))


def start_session() -> SparkSession:
    import topics.spark

    return topics.spark.session(
        "tests",
        "local[2,4]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "768m",
            "spark.sql.streaming.numRecentProgressUpdates": "500",
        },
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = start_session()
        yield session
        session.stop()


class Server:
    """A server with small segments, a client for it, and the options that read from it."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self._settings = {**SMALL, **settings}
        self.process = ServerProcess(directory, **self._settings)
        self.client = Client(self.url)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def options(self, topic: str, **more: Any) -> dict[str, str]:
        return {"url": self.url, "topic": topic, **{name: str(value) for name, value in more.items()}}

    def checkpoint(self) -> None:
        """Everything written so far goes into segments."""
        from topics.client.transport import HttpRequest

        answer = self.client._transport.send(HttpRequest("POST", "/v0/admin/checkpoint"), 30)
        assert answer.status == 200, answer.body

    def fill(self, topic: str, start: int, count: int, **config: Any) -> None:
        """Records `start`.. as {"id": n}, every third with another tag."""
        if config:
            self.client.create(topic, **config)
        for first in range(start, start + count, 100):
            numbers = range(first, min(first + 100, start + count))
            self.client.append(
                topic, [{"data": {"id": n, "name": f"n{n}"}, "tag": "us" if n % 3 else "eu"} for n in numbers]
            )

    def restart_killed(self) -> None:
        """Kill it, and start another on its directory and on some port."""
        shared = self.process.shared
        self.process.kill()
        self.client.close()
        self.process = ServerProcess(self.directory, **self._settings)
        self.process.shared = shared
        self.client = Client(self.url)

    def stop(self) -> None:
        self.client.close()
        if self.process.process.poll() is None:
            self.process.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.process.shared = True
    yield server
    server.stop()


_numbers = itertools.count()


@pytest.fixture
def topic(server: Server) -> str:
    """A new one whose records are durable as soon as they are there."""
    name = f"topic{next(_numbers)}"
    server.client.create(name, durability="fsync")
    return name


Loader = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, server: Server) -> Loader:
    """`load("orders", schema="seq bigint", tag="eu")` from the server."""

    def loaded(topic: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("topics").options(**server.options(topic, **options))
        return (reader.schema(schema) if schema else reader).load()

    return loaded
