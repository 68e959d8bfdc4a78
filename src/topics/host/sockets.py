"""One piece of bytes to many sockets: the compiled twin where it was built, else plain Python.

What it costs to send to a peer that sleeps is mostly the waking of its processor. A loop that is quick enough finds it
still busy with what came before, so whatever the interpreter does between two sends is paid for several times.
"""

from __future__ import annotations

import os
from array import array

__all__ = ["send_each", "send_each_plain"]


def send_each_plain(files: array[int], first: int, count: int, data: bytes) -> list[tuple[int, int]]:
    """Send `data` to `count` of these sockets, from the one at `first` on. None of them blocks. Those whose kernel did
    not take all of it are returned, each by its place and how much was taken: 0 where it is full or broken."""
    size, write = len(data), os.write
    short: list[tuple[int, int]] = []
    for place, file in enumerate(files[first : first + count], first):
        try:
            sent = write(file, data)
        except OSError:
            sent = 0
        if sent != size:
            short.append((place, sent))
    return short


try:
    from topics.host.sockets_fast import send_each
except ImportError:  # the kernel of `format`, which is built with it, has warned
    send_each = send_each_plain
