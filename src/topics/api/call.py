"""One request as its handler sees it: names decoded, query parsed on demand, the answer's common parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from topics.api.auth import ANYONE, Key
from topics.api.http import Answer, Head, Later, Response
from topics.broker.steps import Steps
from topics.model.errors import Forbidden, UnsupportedMediaType

if TYPE_CHECKING:
    from topics.api.routes import Route

JSON = b"application/json"

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Call:
    route: Route
    head: Head
    names: tuple[str, ...] = ()
    """The variable segments of the path, decoded."""
    key: Key = ANYONE
    body: bytes = b""
    _query: dict[str, str] | None = field(default=None)

    # -- reading the request -------------------------------------------------------------------------------------------

    @property
    def query(self) -> dict[str, str]:
        """Of a repeated parameter the last."""
        if self._query is None:
            self._query = parse_query(self.head.query)
        return self._query

    def flag(self, name: str, default: bool) -> bool:
        value = self.query.get(name)
        if value in ("true", "1"):
            return True
        return False if value in ("false", "0") else default

    def number(self, name: str, default: int) -> int:
        """An unsigned number; what cannot be read is the default."""
        value = self.query.get(name, "")
        # Judged by its length first: Python refuses to read numbers of thousands of digits.
        if len(value) > 20 or not (value.isascii() and value.isdigit()):
            return default
        found = int(value)
        return found if found < 1 << 64 else default

    def maybe_number(self, name: str) -> int | None:
        found = self.number(name, -1)
        return None if found < 0 else found

    def content_type(self) -> bytes:
        return self.head.headers.get(b"content-type", b"")

    def json_body(self, empty: bytes | None = None) -> bytes:
        """The body, known to be sent as JSON; an empty one without a type is `empty`, where the call allows that."""
        if not self.content_type().startswith(JSON):
            if empty is not None and not self.body:
                return empty
            raise UnsupportedMediaType("send the body as JSON, with content-type: application/json")
        return self.body if self.body or empty is None else empty

    def check_name(self, name: str) -> None:
        """A name from a body against the key's prefixes."""
        if not self.key.may_name(name):
            raise Forbidden(f"this key may not use the topic {name!r}", topic=name)

    # -- making the answer ---------------------------------------------------------------------------------------------

    def performance(self, now_ns: int, more: bytes = b"") -> bytes:
        return b'"performance":{"server_total_ms":%.6f%b}' % ((now_ns - self.head.received_ns) / 1e6, more)

    def answer(self, value: Any, now_ns: int, status: int = 200, more: bytes = b"") -> Response:
        """The JSON of an object, and the performance block."""
        return Response(status, _encode(value)[:-1] + b"," + self.performance(now_ns, more) + b"}")


def parse_query(text: str) -> dict[str, str]:
    if not text:
        return {}
    if "%" in text or "+" in text or ";" in text:
        return dict(parse_qsl(text, keep_blank_values=True, errors="replace"))
    query = {}
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if part:
            query[name] = value
    return query


def decode_segment(raw: str) -> str | None:
    """A path segment without its percent escapes; None if it is not UTF-8."""
    if "%" not in raw:
        return raw
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None


Handler = Callable[..., Answer | Later | Steps[Answer] | Awaitable[Answer]]
