"""A server that is told to stop again and again stops once, cleanly."""

from __future__ import annotations

import signal
from itertools import cycle
from pathlib import Path

from tests.contract.http.live import Http1, ServerProcess


def test_signals_that_come_again_until_the_end_change_nothing(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    client = Http1(server.host, server.port)
    body = b'{"records":[{"data":1}]}'
    assert client.send("POST", "/v0/topics/t", {"content-type": "application/json"}, body).status == 201
    client.close()
    for number in cycle((signal.SIGTERM, signal.SIGINT)):
        if server.process.poll() is not None:
            break
        server.process.send_signal(number)
    status, _, complaints = server.stop()
    assert (status, complaints) == (0, "")
    # A clean stop leaves no reserved seqs behind.
    again = ServerProcess(tmp_path)
    client = Http1(again.host, again.port)
    answer = client.send("GET", "/v0/topics/t", {}, b"")
    client.close()
    assert (answer.status, answer.json["head_seq"]) == (200, 1)
    assert again.stop()[0] == 0
