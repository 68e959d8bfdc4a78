"""How a command ends: its exit status, and the error of a command line that makes no sense."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
USAGE: Final = 2
LATER: Final = 3
DAMAGED: Final = 4
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class WrongUsage(Exception):
    """Says what is wrong with the arguments and what would be right. Nothing was sent or changed."""
