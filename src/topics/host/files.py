"""How many files the system lets us open."""

from __future__ import annotations

import resource


def raise_file_limit() -> None:
    """For servers: as many as the system allows at all. The soft limit is often 1,024, and a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # with fewer it still serves
