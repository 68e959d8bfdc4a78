"""One small client for every way to reach the server."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Protocol

from tests.contract.http.inprocess import Engine
from topics.api.http import Head


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        code = self.json["error"]["code"]
        assert self.json["error"]["message"], "an error says something"
        assert isinstance(code, str)
        return code

    @property
    def detail(self) -> Any:
        return self.json["error"].get("detail")

    @property
    def problem(self) -> tuple[int, str]:
        return self.status, self.code


class Wire(Protocol):
    """Sends one request and returns the whole answer."""

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply: ...


class InProcess:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        path, _, query = target.partition("?")
        named = {name.lower().encode(): value.encode("latin-1") for name, value in headers.items()}
        named.setdefault(b"host", b"127.0.0.1:4000")
        head = Head(method, target.encode(), path, query, named, "1.1", "test", False, self.engine.clock.monotonic_ns())
        answer = self.engine.exchange(head, body)
        sent = {name.decode(): value.decode() for name, value in answer.headers}
        return Reply(answer.status, {"content-type": answer.content_type.decode(), **sent}, answer.body)


JSON = {"content-type": "application/json"}


class Api:
    """The calls tests make, over any wire."""

    def __init__(self, wire: Wire, token: str | None = None) -> None:
        self.wire = wire
        self.token = token

    def call(self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """`body`: bytes go as they are, anything else as JSON."""
        named = dict(headers or {})
        if self.token is not None:
            named.setdefault("authorization", f"Bearer {self.token}")
        if body is None:
            raw = b""
        elif isinstance(body, bytes):
            raw = body
        else:
            raw = json.dumps(body).encode()
            named.setdefault("content-type", "application/json")
        return self.wire.send(method, target, named, raw)

    def put(self, topic: str, **config: Any) -> Reply:
        return self.call("PUT", f"/v0/topics/{topic}", config)

    def append(self, topic: str, *data: Any, query: str = "", **fields: Any) -> Reply:
        records = [item if isinstance(item, dict) and "data" in item else {"data": item} for item in data]
        return self.call("POST", f"/v0/topics/{topic}{query}", {"records": records, **fields})

    def diff(self, topic: str, **fields: Any) -> Reply:
        return self.call("POST", f"/v0/topics/{topic}/diff", fields)

    def state(self, topic: str) -> Any:
        return self.call("GET", f"/v0/topics/{topic}?touch=false").json

    def delete(self, topic: str, **fields: Any) -> Reply:
        return self.call("POST", f"/v0/topics/{topic}/delete", fields)

    def seqs(self, topic: str, **fields: Any) -> list[int]:
        return [record["$seq"] for record in self.diff(topic, **fields).json["records"]]


def eventually(ask: Any, seconds: float = 60.0) -> Any:
    """What `ask` gives once it is true."""
    end = time.monotonic() + seconds
    while True:
        found = ask()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.01)
