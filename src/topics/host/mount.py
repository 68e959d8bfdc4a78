"""Which mount a directory lies on, as a number that tells it from every other mount of this run of the machine.

What was written and never synced is in memory of the system, and goes with the mount: a file system that broke down and
was mounted again does not have it. The number that `/proc` shows is given to the next mount once it is free, so by it
the two cannot be told apart; Linux 6.8 and later have one that is never given again, to be asked for by `statx`.
"""

from __future__ import annotations

import ctypes
from typing import Final

_WANTED: Final = 0x4000
"""STATX_MNT_ID_UNIQUE; an older kernel answers without it."""
_AT_EMPTY_PATH: Final = 0x1000
_SIZE: Final = 256
_MOUNT_AT: Final = 144


def mount_of(fd: int) -> str | None:
    """Of an open file or directory; None where the kernel does not tell."""
    return _unique(fd) or _shown(fd)


def _unique(fd: int) -> str | None:
    answer = ctypes.create_string_buffer(_SIZE)
    try:
        if ctypes.CDLL(None).statx(fd, b"", _AT_EMPTY_PATH, _WANTED, answer):
            return None
    except (OSError, AttributeError):  # a system, or its library, without that call
        return None
    if not int.from_bytes(answer.raw[:4], "little") & _WANTED:
        return None
    return f"u{int.from_bytes(answer.raw[_MOUNT_AT : _MOUNT_AT + 8], 'little')}"


def _shown(fd: int) -> str | None:
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            for line in file:
                if line.startswith("mnt_id:"):
                    return line.split()[1]
    except FileNotFoundError:
        pass
    return None
