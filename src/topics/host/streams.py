"""The standard streams of a process that was started without some of them, as services are."""

from __future__ import annotations

import os
import sys


def fill_streams() -> None:
    """A stream that was closed becomes one that is empty, or that nobody reads. Left closed, its number would go to the
    first file that is opened, and what is written to the stream would end up in that."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
