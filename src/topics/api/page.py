"""A file of the built-in page, as it is served: nothing may be loaded from elsewhere, framed or guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topics.api.http import Response

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Page:
    content_type: bytes
    body: bytes

    def answer(self) -> Response:
        headers = [
            (b"content-security-policy", _POLICY),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        ]
        return Response(200, self.body, self.content_type, headers)
