"""Staged parts as files: written once, whole and durable before anybody hears of them; read by their commit.

The records in a part have neither seq nor time. Whoever reads one after its commit gets both from the entry that the
commit made for it: `read_staged` turns staged frames into segment frames on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topics.format.checksum import xxh3_64
from topics.format.fields import BadBody
from topics.format.ops import index_staged, restamp_staged
from topics.format.segment import ENTRY_SIZE
from topics.format.staged import HEADER_MAX, PartHead, decode_head, make_head
from topics.host.fs import Fs, parent, replace_file
from topics.model.config import check_topic_name
from topics.model.errors import CorruptFile, InvalidRequest
from topics.rules.txns import parse_txn
from topics.storage.handles import Handles
from topics.storage.paths import part_name, part_number

FOLDER = "staged"


def folder_of(topic_directory: str) -> str:
    return f"{topic_directory}/{FOLDER}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part on disk."""

    number: int
    path: str
    head: PartHead

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.head.size + self.head.frame_bytes


@dataclass(slots=True)
class LoadedPart:
    """A part that was read and proven, ready to be appended."""

    part: Part
    entries: bytearray
    accounted: int
    has_tags: bool


class PartSource:
    """The file of a committed part, as the place that entries of the tail point into."""

    __slots__ = ("_handles", "path")

    def __init__(self, path: str, handles: Handles) -> None:
        self.path = path
        self._handles = handles

    def read_at(self, offset: int, size: int) -> bytes:
        return self._handles.file(self.path).read_at(offset, size)

    def map(self) -> memoryview:
        return self._handles.mapped(self.path)


class NoSource:
    """Where entries of seqs that got no record point: there is nothing to read."""

    path = "<nowhere>"

    def read_at(self, offset: int, size: int) -> bytes:
        return b""

    def map(self) -> memoryview:
        return memoryview(b"")


def head_for(txn: str, part: str, count: int, frames: bytes) -> PartHead:
    return make_head(txn, part, count, len(frames), xxh3_64(frames))


def write_part(fs: Fs, part: Part, frames: bytes) -> None:
    """The file, durable under its name when this returns. Its directory is durable already."""
    replace_file(fs, part.path, part.head.encode() + frames)


def make_folder(fs: Fs, directory: str) -> None:
    """The folder of a topic's parts, its name and the topic's durable. Also where they are there already: whoever made
    them may have been killed before the sync."""
    for path in (directory, folder_of(directory)):
        try:
            if not fs.is_dir(path):
                fs.mkdir(path)
        except FileExistsError:  # made meanwhile by another part, or by a checkpoint
            pass
        fs.sync_dir(parent(path))


def load_part(handles: Handles, path: str, number: int) -> LoadedPart:
    """Read a whole part and prove every byte of it. FileNotFoundError where there is none."""
    view = handles.mapped(path)
    head = _head(path, bytes(view[:HEADER_MAX]))
    start, size = head.size, len(view)
    if size != start + head.frame_bytes:
        raise CorruptFile(path, size, f"it has {size} bytes, its head says {start + head.frame_bytes}")
    entries = bytearray()
    end, accounted = index_staged(view, start, size, 0, entries)
    if end < size:
        raise CorruptFile(path, end, "no valid frame begins here")
    if len(entries) != head.count * ENTRY_SIZE or not head.matches(xxh3_64(view[start:])):
        raise CorruptFile(path, 0, "its frames are not those that its head was made for")
    flags = bytes(entries[16::ENTRY_SIZE])
    return LoadedPart(Part(number, path, head), entries, accounted, any(flag & 1 for flag in set(flags)))


def _head(path: str, data: bytes) -> PartHead:
    try:
        head = decode_head(data)
        parse_txn(head.txn)  # nothing vouches for a head until its frames are read
        check_topic_name(head.part, "part")
    except (BadBody, InvalidRequest) as error:
        raise CorruptFile(path, 0, f"its head is not valid: {error}") from None
    return head


def list_parts(fs: Fs, directory: str) -> Iterator[Part | CorruptFile]:
    """The parts in a topic's directory, by number, each by its head alone; CorruptFile where a file is none."""
    folder = folder_of(directory)
    if not fs.is_dir(folder):
        return
    for number in sorted(n for name in fs.list(folder) if (n := part_number(name)) is not None):
        path = f"{folder}/{part_name(number)}"
        file = fs.open(path)
        try:
            head = _head(path, file.read_at(0, min(HEADER_MAX, file.size())))
            if file.size() != head.size + head.frame_bytes:
                raise CorruptFile(path, file.size(), f"its head says {head.size + head.frame_bytes} bytes")
        except CorruptFile as error:
            yield error
            continue
        finally:
            file.close()
        yield Part(number, path, head)


def read_staged(
    buffer: bytes | memoryview, entries: bytes | memoryview, start: int, count: int, first_seq: int, base: int
) -> tuple[bytearray, bytearray, int]:
    """(frames, entries, how many) of the whole records from `start` on, as a segment would hold them."""
    data, idx = bytearray(), bytearray()
    done = restamp_staged(buffer, entries, start, count, first_seq, None, data, idx, 0, base)
    return data, idx, done
