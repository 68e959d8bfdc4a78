"""The built-in page: static files, a client of the public API like any other. Nothing is built, nothing is fetched."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

KINDS: Final = {
    "index.html": b"text/html; charset=utf-8",
    "page.css": b"text/css; charset=utf-8",
    "page.js": b"text/javascript; charset=utf-8",
}
"""What there is to serve, and as what."""


@cache
def asset(name: str) -> bytes:
    """The bytes of one of `KINDS`."""
    return files(__name__).joinpath(name).read_bytes()
