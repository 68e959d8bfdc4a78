from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with quick heartbeats."""
    server = ServerProcess(
        tmp_path_factory.mktemp("live"),
        TOPICS_TEST_MIN_HEARTBEAT_MS="40",
        TOPICS_ALLOWED_HOSTS="here",
    )
    server.shared = True
    place = Place(server)
    yield place
    place.close()
    status, _, complaints = server.stop()
    assert (status, complaints) == (0, "")
