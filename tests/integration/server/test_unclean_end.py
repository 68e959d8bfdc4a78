"""A server that cannot bring to the disk what it acknowledged says so, and its exit status too."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.contract.http.live import Http1, ServerProcess


def test_directory_that_was_removed_under_a_server_is_told_when_it_stops(tmp_path: Path) -> None:
    data = tmp_path / "removed"
    server = ServerProcess(tmp_path, TOPICS_DATA_DIR=str(data))
    client = Http1(server.host, server.port)
    body = b'{"records":[{"data":1}],"config":{"durability":"fsync"}}'
    head = {"content-type": "application/json"}
    assert client.send("POST", "/v0/topics/t", head, body).status == 201
    shutil.rmtree(data)
    assert client.send("POST", "/v0/topics/t", head, b'{"records":[{"data":2}]}').status == 200
    client.close()
    status, _, complaints = server.stop()
    assert status == 1
    assert "acknowledged writes are lost" in complaints
    assert str(data) in complaints
    assert "Traceback" not in complaints
