"""A live server with something in it that nobody may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.http.client import Api
from tests.contract.http.live import Http1, ServerProcess
from tests.integration.server.target import Target


@pytest.fixture(scope="session")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    server = ServerProcess(tmp_path_factory.mktemp("target"))
    server.shared = True
    wire = Http1(server.host, server.port)
    yield Target(server, Api(wire))
    wire.close()
    status, _, complaints = server.stop()
    assert (status, complaints) == (0, ""), "the server met something that it had not thought of"


@pytest.fixture
def target(shared_target: Target) -> Iterator[Target]:
    """Whatever a test does to it: it lives, its data are the same, and it has logged no trouble."""
    before, complaints = shared_target.content(), shared_target.server.complaints
    yield shared_target
    assert shared_target.server.complaints == complaints
    assert shared_target.content() == before
