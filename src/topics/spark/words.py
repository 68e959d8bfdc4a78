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
    key: str | None
    """Where the server's key is taken from; None: the same."""


_ELSE: Final = "else from the variable TOPICS_TOKEN as it was when Spark started"
OPTIONS: Final = Words(
    "option url",
    "allowLive=true",
    "start it with `topics serve`, or name another with option url; a longer option timeout waits longer",
    f"option token, {_ELSE}",
)
STREAM: Final = replace(OPTIONS, live=None)
ARGUMENTS: Final = Words(
    "server_url", None, "start it with `topics serve`, or name another as server_url", f"argument token, {_ELSE}"
)
FLAGS: Final = Words("--url", None, None, None)
