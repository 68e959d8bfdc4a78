"""How an exporter ends that is told to, by Ctrl-C or by a service manager (SIGTERM).

It waits for an answer of Java's most of the time, and an exception out of the middle of that leaves the line to Java at
odds: what is said next, in any `finally`, gets the answer to something else, or none. So Java is ended first, which
leaves temporary files to nobody, and then whatever Python comes upon on its way out ends in one word.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from topics.cli.exits import TERMINATED

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SILENCE_S: Final = 2.0
JAVA_S: Final = 10.0
"""Java stops its tasks and removes its files in a second or two."""


class Ending:
    def __init__(self) -> None:
        self.told: int | None = None
        """The signal that came."""
        self._later = False
        self._hears = threading.current_thread() is threading.main_thread()
        """To no other thread signals come."""

    @contextmanager
    def heard(self) -> Iterator[None]:
        before = [signal.getsignal(number) for number in SIGNALS]
        self.listen()
        try:
            yield
        except BaseException:
            self.check()
            raise
        finally:
            if self._hears:
                for number, handler in zip(SIGNALS, before, strict=True):
                    signal.signal(number, handler or signal.SIG_DFL)
        self.check()

    def listen(self) -> None:
        """Also where somebody else has listened since, as Spark does once it is started."""
        if self._hears:
            for number in SIGNALS:
                signal.signal(number, self._end)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Not in here, unless it is said twice: a Java whose Python goes while it starts stays for ever."""
        self._later = True
        try:
            yield
        finally:
            self._later = False
        self.listen()
        if self.told is not None:
            end_java()
        self.check()

    def check(self) -> None:
        """KeyboardInterrupt or SystemExit if it was told to end."""
        if self.told is not None:
            raise (KeyboardInterrupt() if self.told == signal.SIGINT else SystemExit(TERMINATED)) from None

    def _end(self, number: int, _: FrameType | None) -> None:
        waits = self._later and self.told is None
        self.told = number
        if waits:
            return
        for each in SIGNALS:  # once is enough
            signal.signal(each, signal.SIG_IGN)
        end_java()
        self.check()


def end_java() -> None:
    """That of this process, if it has one. A thread with a line of its own tells it to be silent first: it would have
    a word for every task that it ends."""
    spark: Any = sys.modules.get("pyspark")
    java: subprocess.Popen[bytes] | None = getattr(spark and spark.SparkContext._gateway, "proc", None)
    if java is None:
        return
    logging.disable()  # so would those who wait for its answers
    silence = threading.Thread(target=_silence, args=(spark.SparkContext._active_spark_context,), daemon=True)
    silence.start()
    silence.join(SILENCE_S)
    _let_go(spark.SparkContext._active_spark_context)
    java.terminate()
    try:
        java.wait(JAVA_S)
    except subprocess.TimeoutExpired:
        java.kill()


def _silence(context: Any) -> None:
    with suppress(Exception):  # it may be gone already
        context.setLogLevel("OFF")


def _let_go(context: Any) -> None:
    """A thread of Python's takes what Java counts, and would tell of the end of that line in twenty of its own."""
    counters = getattr(context, "_accumulatorServer", None)
    if counters is not None:
        counters.handle_error = lambda *_: None
