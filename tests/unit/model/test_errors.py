"""The error tree is what its docstring draws, and codes tell classes apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topics.model import errors
from topics.model.errors import TopicsError


def walk(kind: type[TopicsError], depth: int = 0) -> Iterator[tuple[type[TopicsError], int]]:
    yield kind, depth
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from walk(child, depth + 1)


def drawn() -> set[tuple[str, str | None]]:
    """(class, parent) of every line of the drawing; a level is four characters deep."""
    found: set[tuple[str, str | None]] = set()
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ([│├└─ ]*)([A-Z]\w+)(  .*)?", line)
        if match:
            depth = len(match[1]) // 4
            del above[depth:]
            found.add((match[2], above[-1] if above else None))
            above.append(match[2])
    return found


def test_drawing_shows_every_class_under_its_parent() -> None:
    real = {
        (kind.__name__, None if kind is TopicsError else kind.__bases__[0].__name__) for kind, _ in walk(TopicsError)
    }
    assert drawn() == real


def test_no_code_is_used_by_two_classes() -> None:
    codes = [kind.code for kind, _ in walk(TopicsError) if "code" in vars(kind)]
    assert len(codes) == len(set(codes))
