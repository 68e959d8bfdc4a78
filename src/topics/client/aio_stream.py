"""The records of a streamed answer, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from topics.client.lines import Decoder
from topics.client.transport import AsyncOpenAnswer
from topics.model.errors import Unreachable

T = TypeVar("T")


class AsyncRecordStream(AsyncIterator[T]):
    """The items of a streamed answer. Leaving it early is fine: close it, or use it as a context manager."""

    def __init__(self, opened: AsyncOpenAnswer, decoder: Decoder[T]) -> None:
        self._opened = opened
        self._decoder = decoder
        self._items = self._read()

    async def _read(self) -> AsyncIterator[T]:
        try:
            async for piece in self._opened.pieces():
                for item in self._decoder.feed(piece):
                    yield item
            self._decoder.finish()
        except Unreachable as error:
            raise self._decoder.cut(error.message) from error
        finally:
            await self._opened.close()

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        await self._opened.close()

    async def __aenter__(self) -> AsyncRecordStream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
