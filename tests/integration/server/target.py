"""What hostile input is thrown at: a live server with a known content."""

from __future__ import annotations

import re
import socket
from typing import Any

from tests.contract.http.client import Api
from tests.contract.http.live import ServerProcess

KEPT = "kept"
RECORDS: list[dict[str, Any]] = [
    {"data": {"n": 1}, "tag": "red", "node": "n1", "key": "k1", "meta": {"a": 1}},
    {"data": "two", "tag": "blue"},
    {"data": None},
]


class Target:
    def __init__(self, server: ServerProcess, api: Api) -> None:
        self.server = server
        self.api = api
        assert api.put(KEPT, durability="fsync").status == 201
        assert api.append(KEPT, *RECORDS).status == 200
        fields = {"source": KEPT, "dest": "kept-copy"}
        assert api.call("PUT", "/v0/routers/kept-router", fields).status == 201
        assert api.call("POST", "/v0/admin/checkpoint").status == 200

    def content(self) -> Any:
        """Everything that a client can see, but for what changes by looking."""
        assert self.api.call("GET", "/v0/health").json["status"] == "ok"
        rows = self.api.call("GET", "/v0/topics?page_size=1000").json["topics"]
        names = [row["topic"] for row in rows]
        state = self.api.state(KEPT)
        return {
            "topics": names,
            "routers": self.api.call("GET", "/v0/routers").json["routers"],
            "records": {name: self.api.call("GET", f"/v0/topics/{name}/records").json["records"] for name in names},
            "config": {name: self.api.state(name)["config"] for name in names},
            "heads": (state["head_seq"], state["count"], state["bytes"], state["epoch"]),
        }

    def memory_peak(self) -> int:
        """The most memory that the server ever held, in bytes."""
        with open(f"/proc/{self.server.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def connect(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.port), timeout=120)

    def raw(self, data: bytes) -> bytes:
        """Send these bytes, and nothing after them; everything that comes back."""
        with self.connect() as wire:
            wire.sendall(data)
            wire.shutdown(socket.SHUT_WR)
            return read_rest(wire)


def read_rest(wire: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := wire.recv(1 << 16):
            pieces.append(piece)
    except ConnectionResetError:
        pass  # it closed with input of ours unread
    return b"".join(pieces)


def statuses(answers: bytes) -> list[int]:
    """Of every answer in a row of them."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) [A-Z]", answers)]
