"""One process has a store: what forks, exits and forgotten closes do to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import topics

ROOT = Path(__file__).resolve().parents[2]

FORK = """
import os, sys, threading, time
import topics
log = topics.open(sys.argv[1], wal_shards=2)
log.create("orders", durability="fsync")
stop = threading.Event()

def work():
    while not stop.is_set():
        log.append("orders", [{"data": "parent"}])

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        refused = 0
        calls = (lambda: log.append("orders", [{"data": "child"}]), lambda: list(log.read("orders")), log.checkpoint)
        for call in calls:
            try:
                call()
            except topics.StoreClosed:
                refused += 1
        log.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, "a forked child may use the store"
stop.set()
for thread in threads:
    thread.join()
if not os.fork():
    print("alive", flush=True)  # outlives the parent, and must not keep its lock
time.sleep(60)
"""


def test_a_forked_child_leaves_the_store_to_its_parent(data: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORK, str(data)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == b"alive\n", parent.stderr.read().decode()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        with topics.open(data) as log:
            items = list(log.read("orders"))
            assert {item.data for item in items if isinstance(item, topics.Record)} == {"parent"}
            assert len(items) == log.info("orders").head_seq
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


HELD = """
import os, signal, sys, threading
import topics
log = topics.open(sys.argv[1])
log.create("orders", durability="fsync")
log.append("orders", [{"data": n} for n in range(5000)])
reading = log.read("orders")
next(reading)
held, done = threading.Event(), threading.Event()

def hold():
    with log._lock, log._store.handles._lock, log._closing:
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(30)  # ends a child that waits
    refused = 0
    calls = (lambda: log.append("orders", [{"data": "child"}]), lambda: list(reading), log.checkpoint, log.topics)
    for call in calls:
        try:
            call()
        except topics.StoreClosed:
            refused += 1
    log.close()
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
done.set()
log.close()
"""


def test_a_child_that_is_forked_while_others_hold_the_locks_is_refused_and_does_not_wait(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD, str(data)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("4\n", "")


FORGET = """
import sys
import topics
log = topics.open(sys.argv[1], checkpoint_bytes=1024, checkpoint_gap_ms=0)
for name, durability in (("a", "memory"), ("b", "disk"), ("c", "fsync")):
    log.create(name, durability=durability)
    for n in range(300):
        log.append(name, [{"data": n}])
if sys.argv[2] == "raise":
    raise SystemExit(7)
"""


def test_a_process_that_forgets_to_close_ends_quietly_and_loses_nothing(tmp_path: Path) -> None:
    for ending, code in (("end", 0), ("raise", 7)):
        data = tmp_path / ending
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", FORGET, str(data), ending],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, "")
        with topics.open(data) as log:
            for name in ("a", "b", "c"):
                found = [item.data for item in log.read(name) if isinstance(item, topics.Record)]
                assert found == list(range(300))


STOPPED = """
import sys, threading
import topics
log = topics.open(sys.argv[1], wal_shards=2)
log.create("orders", durability="fsync")
say = threading.Lock()

def work(me):
    for number in range(10**9):
        log.append("orders", [{"data": [me, number]}])
        with say:
            print(me, number, flush=True)

for me in range(3):
    threading.Thread(target=work, args=(me,)).start()
"""


def test_a_stopped_writer_keeps_its_store_and_loses_nothing_when_it_goes_on(data: Path) -> None:
    """SIGSTOP of the writer: others are told that the store is open meanwhile, however long that is."""
    writer = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STOPPED, str(data)], cwd=ROOT, stdout=subprocess.PIPE
    )
    acked: list[tuple[int, ...]] = []

    def listen(count: int) -> None:
        assert writer.stdout is not None
        for _ in range(count):
            acked.append(tuple(map(int, writer.stdout.readline().split())))

    try:
        for _ in range(5):
            listen(50)
            writer.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
            for _ in range(2):
                with pytest.raises(topics.StoreLocked):
                    topics.open(data)
            writer.send_signal(signal.SIGCONT)
        listen(50)
    finally:
        writer.kill()
        assert writer.stdout is not None
        rest = writer.stdout.read()
        writer.stdout.close()
        writer.wait()
    whole = rest[: rest.rfind(b"\n") + 1]
    acked += [tuple(map(int, line.split())) for line in whole.splitlines()]
    with topics.open(data) as log:
        items = list(log.read("orders"))
        assert all(isinstance(item, topics.Record) for item in items), "nothing is lost, and nothing told as lost"
        found = [tuple(item.data) for item in items if isinstance(item, topics.Record)]
        assert log.recovery_report == []
    assert set(acked) <= set(found)
    assert len(found) - len(acked) <= 3, "at most what was on its way"
    for me in range(3):
        mine = [number for who, number in found if who == me]
        assert mine == list(range(len(mine))), "in order, each once"
