"""A client of the HTTP contract, synchronous and asynchronous, typed. Imports `topics.model` and an HTTP library.

    with Client("http://127.0.0.1:4000") as client:
        client.append("orders", [{"data": {"id": 1}, "tag": "eu"}])
        for item in client.read("orders"):
            print(item)

`calls` and `history` build requests and read answers, `retry` decides what is tried again, `lines` reads streams: all
pure, shared by `sync` (urllib3) and `aio` (aiohttp). Names are loaded when first used, so that one HTTP library does
not load the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client.aio import AsyncClient
    from topics.client.retry import RetryPolicy
    from topics.client.sync import Client

__all__ = ["AsyncClient", "Client", "RetryPolicy"]

_HOMES = {"AsyncClient": "aio", "Client": "sync", "RetryPolicy": "retry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'topics.client' has no attribute {name!r}")
    return getattr(import_module(f"topics.client.{_HOMES[name]}"), name)
