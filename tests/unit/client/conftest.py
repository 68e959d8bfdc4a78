"""One behaviour suite for both clients: the asynchronous one is driven step by step behind the synchronous face."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from topics.client import AsyncClient, Client


class Driven:
    """An object whose awaitables are awaited at once, so that it reads like its synchronous twin."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            if inspect.isawaitable(result):
                result = self._loop.run_until_complete(cast(Any, result))
            return Driven(result, self._loop) if hasattr(result, "__anext__") else result

        return call

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(self._inner.__anext__())
            except StopAsyncIteration:
                return


class Connect:
    """Makes clients of one kind, whose pauses take no time and are written down."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pauses: list[float] = []
        self._made: list[Any] = []
        self._loop = asyncio.new_event_loop() if kind == "async" else None

    def __call__(self, url: str, **options: Any) -> Client:
        if self._loop is None:
            client = Client(url, sleep=self.pauses.append, **options)
            self._made.append(client)
            return client

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        driven = Driven(AsyncClient(url, sleep=pause, **options), self._loop)
        self._made.append(driven)
        return cast(Client, driven)

    def close(self) -> None:
        for client in self._made:
            client.close()
        if self._loop is not None:
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    made = Connect(request.param)
    yield made
    made.close()
