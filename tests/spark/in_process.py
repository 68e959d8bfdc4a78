"""Spark without Java: tasks run in this process, pickled as they would travel. For what is not about Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Java:
    def sc(self) -> _Java:
        return self

    def isStopped(self) -> bool:
        return False


class _Tasks:
    def __init__(self, parts: list[Any], do: Callable[[Any], Any] | None = None) -> None:
        self._parts = parts
        self._do = do

    def flatMap(self, do: Callable[[Any], Any]) -> _Tasks:
        return _Tasks(self._parts, do)

    def collect(self) -> list[Any]:
        do = pickle.loads(pickle.dumps(self._do))
        return [found for part in pickle.loads(pickle.dumps(self._parts)) for found in do(part)]


class _Context:
    _jsc = _Java()

    def parallelize(self, parts: list[Any], count: int) -> _Tasks:
        assert count == len(parts)
        return _Tasks(parts)


class _Session:
    sparkContext = _Context()


def in_process() -> SparkSession:
    return cast("SparkSession", _Session())
