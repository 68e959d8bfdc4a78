"""How much a thread of ours may claim of the machine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

STEP_BACK: Final = 5
"""A third of the weight of a caller's thread. Much more would let a thread that holds the interpreter's lock wait long
for a core on a busy machine, and everybody else for that lock."""


def step_back() -> None:
    """From now on this thread lets others go first where cores are scarce, and pushes none off its core when it wakes.
    Threads that it starts inherit that, and may say so again. Only Linux gives each thread a weight of its own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + STEP_BACK, 19))
