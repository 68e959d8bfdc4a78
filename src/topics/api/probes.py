"""Health and readiness."""

from __future__ import annotations

from typing import Literal

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service
from topics.storage.store import Store


class Trouble(msgspec.Struct, omit_defaults=True):
    """In a few words without names or paths: whoever may not ask for anything else may ask for health."""

    code: Literal["read_only", "disk_full", "checkpoint_failed"]
    shard: int | None = None
    since: int | None = None


class Health(msgspec.Struct, omit_defaults=True):
    status: Literal["ok", "degraded"]
    """`degraded`: alive, but some writes are refused, or the WAL cannot be copied into segments."""
    version: str
    uptime_ms: int
    trouble: list[Trouble] = []


class Ready(msgspec.Struct):
    status: str
    wal_replay_complete: bool
    topics: int


def health_body(version: str, uptime_ms: int, service: Service | None) -> bytes:
    trouble = [] if service is None else find_trouble(service.broker.store)
    return msgspec.json.encode(Health("degraded" if trouble else "ok", version, uptime_ms, trouble))


def find_trouble(store: Store) -> list[Trouble]:
    found = []
    with store.lock:
        for shard in store.shards:
            if shard.failed is not None:
                found.append(Trouble("read_only", shard.index, shard.failed.facts.get("since")))
            elif shard.refusing is not None:
                found.append(Trouble("disk_full", shard.index))
        if store.trouble is not None:
            found.append(Trouble("checkpoint_failed"))
    return found


def ready(service: Service, _: Call) -> Response:
    with service.broker.store.lock:
        topics = len(service.broker.store.topics)
    return Response(200, msgspec.json.encode(Ready("ready", True, topics)))
