"""One suite, several ways to reach the server: as values in process, over HTTP/1.1 and over HTTP/2."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.http.client import Api, InProcess
from tests.contract.http.inprocess import Engine
from tests.contract.http.live import Http1, Http2, ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(str(tmp_path_factory.mktemp("store")))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("live"))
    server.shared = True
    yield server
    status, _, trouble = server.stop()
    assert (status, trouble) == (0, "")


@pytest.fixture(params=["values", "http1", "http2"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "values":
        yield Api(InProcess(request.getfixturevalue("shared_engine")))
        return
    server: ServerProcess = request.getfixturevalue("live_server")
    if request.param == "http2":
        yield Api(Http2(server.host, server.port))
        return
    wire = Http1(server.host, server.port)
    yield Api(wire)
    wire.close()


@pytest.fixture
def topic() -> str:
    """A name nobody else uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """One of its own, in process, with a clock to move."""
    engine = Engine(str(tmp_path / "store"))
    yield engine
    engine.close()


@pytest.fixture
def own(engine: Engine) -> Api:
    return Api(InProcess(engine))
