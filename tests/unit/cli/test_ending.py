"""An exporter that is told to end: when it does, with which status, and what becomes of its Java."""

from __future__ import annotations

import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from topics.cli import ending
from topics.cli.ending import SIGNALS, Ending, end_java

WORDS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
Do = Callable[[Ending], object]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Java, each time it was ended."""
    times: list[str] = []
    monkeypatch.setattr(ending, "end_java", lambda: times.append("java"))
    return times


def run(do: Do) -> None:
    told_to = Ending()
    with told_to.heard():
        do(told_to)


@pytest.mark.parametrize(("number", "word"), WORDS)
def test_java_is_ended_and_the_handlers_are_as_before(
    ended: list[str], number: signal.Signals, word: type[BaseException]
) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(word):
        run(lambda _: signal.raise_signal(number))
    assert (ended, [signal.getsignal(each) for each in SIGNALS]) == (["java"], before)


def fails_on_its_way_out(number: signal.Signals) -> None:
    try:
        signal.raise_signal(number)
    finally:
        raise KeyError("p")  # Java's answer to something else


def takes_it_for_an_error_of_a_task(number: signal.Signals) -> None:
    with suppress(BaseException):
        signal.raise_signal(number)


@pytest.mark.parametrize("do", [fails_on_its_way_out, takes_it_for_an_error_of_a_task])
@pytest.mark.parametrize(("number", "word"), WORDS)
def test_whatever_python_comes_upon_afterwards_it_ends_in_one_word(
    ended: list[str], number: signal.Signals, word: type[BaseException], do: Callable[[signal.Signals], None]
) -> None:
    with pytest.raises(word):
        run(lambda _: do(number))


def test_java_that_starts_is_waited_for_unless_it_is_said_twice(ended: list[str]) -> None:
    done: list[str] = []

    def start(told_to: Ending, times: int) -> None:
        with told_to.later():
            for _ in range(times):
                signal.raise_signal(signal.SIGTERM)
            done.append("started")

    with pytest.raises(SystemExit) as told:
        run(lambda told_to: start(told_to, 1))
    assert (told.value.code, done, ended) == (143, ["started"], ["java"])
    with pytest.raises(SystemExit):
        run(lambda told_to: start(told_to, 2))
    assert done == ["started"]


def test_ctrl_c_is_heard_where_spark_listens_too(ended: list[str]) -> None:
    def start(told_to: Ending) -> None:
        with told_to.later():
            signal.signal(signal.SIGINT, lambda *_: None)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(start)
    assert ended == ["java"]


def test_the_line_on_which_java_counts_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = threading.Event()

    class Counts(socketserver.BaseRequestHandler):
        """As Spark's thread that takes what Java counts."""

        def handle(self) -> None:
            there.set()
            if not self.request.recv(1):
                raise EOFError

    script = (
        "import socket, sys, time; line = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    )
    with socketserver.TCPServer(("127.0.0.1", 0), Counts) as server:
        taking = threading.Thread(target=server.handle_request)
        taking.start()
        with subprocess.Popen([sys.executable, "-c", script, str(server.server_address[1])]) as java:
            context = SimpleNamespace(
                _gateway=SimpleNamespace(proc=java),
                _active_spark_context=SimpleNamespace(setLogLevel=lambda _: None, _accumulatorServer=server),
            )
            monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkContext=context))
            monkeypatch.setattr("logging.disable", lambda: None)
            assert there.wait(30)
            end_java()
        taking.join(10)
    assert capsys.readouterr().err == ""


def test_java_that_does_not_end_is_killed_and_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    said: list[Any] = []
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as java:
        assert java.stdout is not None
        java.stdout.readline()
        context = SimpleNamespace(
            _gateway=SimpleNamespace(proc=java),
            _active_spark_context=SimpleNamespace(setLogLevel=said.append),
        )
        monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkContext=context))
        monkeypatch.setattr("logging.disable", lambda: said.append("logging"))
        monkeypatch.setattr(ending, "JAVA_S", 0.05)
        end_java()
        assert java.wait(10) == -signal.SIGKILL
    assert said == ["logging", "OFF"]
    monkeypatch.delitem(sys.modules, "pyspark")
    end_java()
