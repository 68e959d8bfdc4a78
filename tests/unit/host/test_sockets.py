"""The plain and the compiled loop over sockets: what is said to be taken is what the peer can read."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET, socket, socketpair

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.host import sockets

SendEach = Callable[["array[int]", int, int, bytes], list[tuple[int, int]]]

TWINS: list[SendEach] = [sockets.send_each_plain]
if sockets.send_each is not sockets.send_each_plain:
    TWINS.append(sockets.send_each)

DATA = bytes(range(251)) * 40
MANY = 150
"""So many that the compiled loop has help."""


@pytest.fixture(params=TWINS, ids=lambda twin: str(twin.__name__))
def send_each(request: pytest.FixtureRequest) -> SendEach:
    twin: SendEach = request.param
    return twin


class Pairs:
    """Ends that are sent to, and their peers."""

    def __init__(self) -> None:
        self.ours: list[socket] = []
        self.peers: list[socket] = []

    def add(self, state: str = "open", room: int = 4096) -> None:
        ours, peer = socketpair()
        ours.setsockopt(SOL_SOCKET, SO_SNDBUF, room)
        ours.setblocking(False)
        peer.setblocking(False)
        if state in ("full", "nearly full"):
            self._fill(ours, 1 if state == "full" else 2048)
        elif state == "closed":
            peer.close()
        self.ours.append(ours)
        self.peers.append(peer)

    @staticmethod
    def _fill(ours: socket, step: int) -> None:
        """As far as pieces of this size are taken whole."""
        for size in (2048, step):
            try:
                while ours.send(bytes(size)) == size:
                    pass
            except BlockingIOError:
                pass

    @property
    def files(self) -> array[int]:
        return array("i", [one.fileno() for one in self.ours])

    def waiting(self, place: int) -> bytes:
        """What the peer has not read yet."""
        found = b""
        try:
            while piece := self.peers[place].recv(1 << 16):
                found += piece
        except OSError:
            pass
        return found

    def close(self) -> None:
        for one in self.ours + self.peers:
            one.close()


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    made = Pairs()
    yield made
    made.close()


def test_each_of_the_asked_ones_gets_all_of_it(send_each: SendEach, pairs: Pairs) -> None:
    for _ in range(5):
        pairs.add()
    assert send_each(pairs.files, 1, 3, b"news") == []
    assert [pairs.waiting(place) for place in range(5)] == [b"", b"news", b"news", b"news", b""]


def test_more_than_there_are_is_as_many_as_there_are(send_each: SendEach, pairs: Pairs) -> None:
    pairs.add()
    assert send_each(pairs.files, 0, 9, b"news") == []
    assert send_each(pairs.files, 1, 9, b"news") == []
    assert send_each(array("i"), 0, 9, b"news") == []
    assert pairs.waiting(0) == b"news"


def test_one_that_is_full_or_gone_takes_nothing_and_holds_up_nobody(send_each: SendEach, pairs: Pairs) -> None:
    for state in ("full", "open", "closed", "open"):
        pairs.add(state)
    files = pairs.files
    files.insert(2, -1)
    assert send_each(files, 0, 5, b"news") == [(0, 0), (2, 0), (3, 0)]
    assert (pairs.waiting(1), pairs.waiting(3)) == (b"news", b"news")


def test_one_that_takes_a_part_says_how_much(send_each: SendEach, pairs: Pairs) -> None:
    pairs.add()
    large = bytes(range(256)) * 8192
    [(place, taken)] = send_each(pairs.files, 0, 1, large)
    assert place == 0
    assert 0 < taken < len(large)
    assert pairs.waiting(0) == large[:taken]


@given(
    states=st.lists(st.sampled_from(["open", "full", "nearly full", "closed"]), max_size=6),
    first=st.integers(0, 3),
    count=st.integers(0, 6),
    size=st.integers(1, len(DATA)),
)
@settings(max_examples=40, deadline=None)
def test_both_loops_say_the_same_and_it_is_true(states: list[str], first: int, count: int, size: int) -> None:
    answers = []
    for send_each in TWINS:
        pairs = Pairs()
        try:
            for state in states:
                pairs.add(state)
            said = send_each(pairs.files, first, count, DATA[:size])
            short = dict(said)
            for place in range(first, min(first + count, len(states))):
                taken = short.get(place, size)
                assert pairs.waiting(place).endswith(DATA[:taken])
            answers.append(said)
        finally:
            pairs.close()
    assert all(answer == answers[0] for answer in answers)


def test_many_get_all_of_each_piece_once_and_in_order(send_each: SendEach, pairs: Pairs) -> None:
    for _ in range(MANY):
        pairs.add(room=1 << 17)
    files = pairs.files
    for number in range(150):
        # Large ones, so that two threads are at it, and each of another size than the one before.
        piece = b"%09d " % number * (1000 + number % 7)
        assert send_each(files, 0, MANY, piece) == []
        assert {pairs.waiting(place) for place in range(MANY)} == {piece}


def test_of_many_those_that_take_less_are_told_by_their_place(send_each: SendEach, pairs: Pairs) -> None:
    states = [("open", "full", "open", "closed", "open")[place % 5] for place in range(MANY)]
    for state in states:
        pairs.add(state)
    refused = [(place, 0) for place in range(3, MANY) if states[place] != "open"]
    assert send_each(pairs.files, 3, MANY, b"news") == refused
    heard = [pairs.waiting(place) == b"news" for place in range(MANY)]
    assert heard == [place >= 3 and states[place] == "open" for place in range(MANY)]


def test_a_child_sends_to_many_as_its_parent_does() -> None:
    run_apart("""
import os, socket
from array import array
from topics.host import sockets
pairs = [socket.socketpair() for _ in range(50)]
files = array("i", [ours.fileno() for ours, _ in pairs])
def count_threads():
    return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
assert sockets.send_each(files, 0, 50, b"a") == []
threads = count_threads()
child = os.fork()
if not child:
    for _ in range(100):
        assert sockets.send_each(files, 0, 50, b"b") == []
    assert count_threads() == threads
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert sockets.send_each(files, 0, 50, b"c") == []
assert {peer.recv(1000) for _, peer in pairs} == {b"a" + b"b" * 100 + b"c"}
""")


@pytest.mark.skipif(len(TWINS) == 1, reason="nothing was compiled")
def test_compiled_loop_refuses_what_is_no_list_of_files() -> None:
    for files in (b"\0\0\0\0", array("q", [1]), [1], None):
        with pytest.raises((TypeError, BufferError)):
            sockets.send_each(files, 0, 1, b"news")  # type: ignore[arg-type]


def test_plain_loop_takes_over_where_nothing_was_compiled() -> None:
    run_apart("""
sys.modules["topics.host.sockets_fast"] = None
from topics.host import sockets
assert sockets.send_each is sockets.send_each_plain
""")


def run_apart(script: str) -> None:
    """In a process of its own."""
    paths = [str(Path(sockets.__file__).parents[2]), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
