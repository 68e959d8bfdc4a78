"""How many files the system lets us open."""

from __future__ import annotations

import errno
import resource
from typing import Final

FILES_USUAL: Final = 1024
"""What a process may have open that asks for nothing else."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Nothing was opened, because too much is open: that says nothing of what was to be opened."""


def files_max() -> int:
    """How many files this process may have open, up to as many as is usual."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_USUAL if soft == resource.RLIM_INFINITY else min(soft, FILES_USUAL)


def raise_file_limit() -> None:
    """For servers: as many as the system allows at all. The soft limit is often 1,024, and a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # with fewer it still serves
