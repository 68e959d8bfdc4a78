"""Health and readiness."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service


class Health(msgspec.Struct):
    status: str
    version: str
    uptime_ms: int


class Ready(msgspec.Struct):
    status: str
    wal_replay_complete: bool
    topics: int


def health_body(version: str, uptime_ms: int) -> bytes:
    return msgspec.json.encode(Health("ok", version, uptime_ms))


def ready(service: Service, _: Call) -> Response:
    with service.broker.store.lock:
        topics = len(service.broker.store.topics)
    return Response(200, msgspec.json.encode(Ready("ready", True, topics)))
