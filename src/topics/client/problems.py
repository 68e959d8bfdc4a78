"""An answer that is not a success, as an error of the one tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from topics.client.transport import Answer
from topics.model import errors
from topics.model.errors import TopicsError


class _Problem(msgspec.Struct):
    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    error: _Problem


_DECODER: Final = msgspec.json.Decoder(_Body)


def _tree(root: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


# A class that inherits its code shares it with its parent, which is the one that the wire means.
BY_CODE: Final[dict[str, type[TopicsError]]] = {kind.code: kind for kind in _tree(TopicsError) if "code" in vars(kind)}

BY_STATUS: Final[dict[int, type[TopicsError]]] = {
    400: errors.InvalidRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    406: errors.NotAcceptable,
    409: errors.Conflict,
    412: errors.GenerationChanged,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedMediaType,
    416: errors.RangeNotSatisfiable,
    422: errors.Conflict,
    429: errors.Throttled,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""For a code that this version does not know, or an answer of something between us and the server."""


def problem(answer: Answer) -> TopicsError:
    """The error in `answer`. Its facts are the wire's `detail`, `status`, and `retry_after_s` where the server said it.

    A code of a later server keeps its name: `error.code` is what the wire said, whatever class it fell to.
    """
    facts: dict[str, Any] = {"status": answer.status}
    retry_after_s = _seconds(answer.headers.get("retry-after"))
    if retry_after_s is not None:
        facts["retry_after_s"] = retry_after_s
    fallback = BY_STATUS.get(answer.status, TopicsError if answer.status >= 500 else errors.BadAnswer)
    try:
        told = _DECODER.decode(answer.body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        start = answer.body[:200].decode("utf-8", "replace").strip()
        return _made(fallback, None, f"the server answered {answer.status}: {start or 'without a body'}", facts)
    kind = BY_CODE.get(told.code, fallback)
    return _made(kind, told.code, told.message or told.code, {**(told.detail or {}), **facts})


def _made(kind: type[TopicsError], code: str | None, message: str, facts: Mapping[str, Any]) -> TopicsError:
    # Some classes word their own message from their facts; here the server has worded it already.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.message = message
    error.facts = dict(facts)
    if code is not None and code != kind.code:
        error.code = code  # type: ignore[misc]  # what the wire said is this error's code, not the class's
    return error


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds. Its other form, a date, is not in the contract, and clocks differ: it is ignored."""
    return float(text) if text and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else None
