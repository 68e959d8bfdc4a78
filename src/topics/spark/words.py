"""In whose words an error advises: each way to ask for a topic has names of its own for the same thing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Words:
    url: str
    """How a server is named."""
    live: str | None
    """How the sealed part of a directory in use is asked for; None: it cannot be."""
    gone: str | None
    """What to do about a server that does not answer; None: whoever shows the error says it."""


OPTIONS: Final = Words(
    "option url",
    "allowLive=true",
    "start it with `topics serve`, or name another with option url; a longer option timeout waits longer",
)
STREAM: Final = replace(OPTIONS, live=None)
ARGUMENTS: Final = Words("server_url", None, "start it with `topics serve`, or name another as server_url")
FLAGS: Final = Words("--url", None, None)
