"""The WAL of a directory at rest: which files follow the snapshot, and how far each is valid.

A store that opens the directory repairs what it finds; a reader only reads. So everything that is not plainly right
is refused here, with the remedy: open the directory with `topics` once, which repairs it or says what is wrong. What
is plainly right is a chain of files from the snapshot's position to the newest, each valid to the length that the next
one states, the last one to its end, to zeros, or to a torn write that nothing proves to have been durable.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.format.control import BadBody, FileMark, decode_mark
from topics.format.current import Current
from topics.format.frame import BadFrame, Kind, UnknownKind, check_frame, decode_frame
from topics.format.ops import find_sync_marks, scan_wal
from topics.format.prepared import WalScan
from topics.format.snapshot import Position
from topics.format.walscan import lies_beyond
from topics.host.fs import Fs, read_file
from topics.model.errors import CorruptFile, UnknownVersion
from topics.spark.rest_names import wal_number, wal_numbers, wal_path


@dataclass(slots=True)
class WalPart:
    """The valid frames of one WAL file behind the snapshot's position."""

    path: str
    number: int
    view: memoryview
    entries: bytearray
    scan: WalScan | None
    """None: nothing of it is behind the position."""


@dataclass(slots=True)
class _Found:
    path: str
    number: int
    view: memoryview
    mark: FileMark | None


def read_group(fs: Fs, directory: str, position: Position) -> list[WalPart]:
    """The files of one WAL group from `position` on, in order."""
    found: dict[int, _Found] = {}
    for number in wal_numbers(fs, directory):
        if number >= position.file:
            path = wal_path(directory, number)
            file = fs.open(path)
            view = file.map() if file.size() else memoryview(b"")
            found[number] = _Found(path, number, view, _first_mark(path, number, view))
    lengths = _stated_lengths(fs, directory, position, found)
    chain = _chain(found, directory, position)
    parts: list[WalPart] = []
    for index, item in enumerate(chain):
        start = position.offset if item.number == position.file else 0
        following = chain[index + 1].mark if index + 1 < len(chain) else None
        entries = bytearray()
        scan = _scan(item, start, None if following is None else following.previous_length, entries)
        if following is None and scan is not None and lengths.get(item.number, 0) > scan.end:
            raise _refused(item.path, scan.stop, f"{scan.why}, but CURRENT knows {lengths[item.number]} valid bytes")
        parts.append(WalPart(item.path, item.number, item.view, entries, scan))
    return parts


def _stated_lengths(fs: Fs, directory: str, position: Position, found: dict[int, _Found]) -> dict[int, int]:
    """Valid lengths by CURRENT, whose files must be there. It is derived: a missing or doubtful one says nothing."""
    try:
        current = Current.decode(read_file(fs, f"{directory}/CURRENT"))
    except (FileNotFoundError, ValueError):
        return {}
    lengths = {wal_number(name): length for name, length in current.sealed}
    for number in [*(number for number, length in lengths.items() if length), wal_number(current.active)]:
        if number >= position.file and number not in found:
            raise _refused(wal_path(directory, number), 0, "it is missing, but CURRENT names it")
    return lengths


def _chain(found: dict[int, _Found], directory: str, position: Position) -> list[_Found]:
    """From the newest file with a whole first frame back to the position, by what each says of the one before it."""
    whole = [number for number, item in found.items() if item.mark is not None]
    chain: list[int] = []
    number = max(whole, default=0)
    while number and number >= position.file:
        item = found.get(number)
        if item is None:
            raise _refused(wal_path(directory, number), 0, "it is missing, but a later file needs it")
        if item.mark is None:
            # Its beginning is below the position and is not judged; anywhere else it is a hole in the log.
            if number != position.file or not 0 < position.offset <= len(item.view):
                raise _refused(item.path, 0, "its first frame is not valid, but a later file needs it")
            chain.append(number)
            break
        chain.append(number)
        number = item.mark.previous
    if position.offset and position.file not in found:
        raise _refused(wal_path(directory, position.file), 0, "it is missing, but the snapshot needs it")
    chain.reverse()
    for number, item in found.items():
        if number in chain:
            continue
        at_position = number == position.file and position.offset > 0
        if item.mark is not None and not (at_position and position.offset >= len(item.view)):
            raise _refused(item.path, 0, "it holds frames, but no later file follows it")
        if item.mark is None and at_position and position.offset <= len(item.view):
            chain = sorted([*chain, number])
        elif item.mark is None and _evidence(item, scan_wal(item.view, 0, len(item.view), bytearray()).end):
            raise _refused(item.path, 0, "its first frame is not valid, but frames in it had been synced")
    return [found[number] for number in chain]


def _first_mark(path: str, number: int, view: memoryview) -> FileMark | None:
    """What the first frame states; None if there is no whole one: such a file was never begun."""
    try:
        frame = decode_frame(view, 0, len(view))
        mark = decode_mark(frame.body) if frame.kind == Kind.CHECKPOINT_MARK else None
    except (BadFrame, BadBody):
        return None
    if not isinstance(mark, FileMark) or mark.number != number:
        raise _refused(path, 0, "its first frame is not of this file")
    return mark


def _scan(item: _Found, start: int, proven: int | None, entries: bytearray) -> WalScan | None:
    size = len(item.view)
    if start >= (size if proven is None else proven):
        return None
    if start > size:
        raise _refused(item.path, size, f"it ends at byte {size}, but {proven} bytes were proven")
    end = size if proven is None else min(proven, size)
    scan = scan_wal(item.view, start, end, entries)
    if proven is not None:
        if scan.reason != "end" or end != proven:
            raise _refused(item.path, scan.stop, f"{scan.why}, but {proven} bytes were proven")
        return scan
    if scan.reason not in ("end", "zeros"):
        _refuse_unknown(item, scan.stop)
        if lies_beyond(item.view, scan.stop):
            raise _refused(item.path, scan.stop, scan.why)
        proven = _evidence(item, scan.end)
        if proven > scan.end:
            raise _refused(item.path, scan.stop, f"{scan.why}, but {proven} bytes had been synced")
    return scan


def _evidence(item: _Found, start: int) -> int:
    """The largest synced offset that a credible mark behind `start` states. One mark alone counts only if a frame or
    the end follows it: the bytes of a mark may also stand inside a record."""
    size = len(item.view)
    claims = [(at, synced) for at, synced in find_sync_marks(item.view, start, size, item.number) if synced <= at]
    if len(claims) == 1:
        behind = scan_wal(item.view, decode_frame(item.view, claims[0][0], size).end, size, bytearray())
        if behind.frames == 0 and behind.reason == "bad":
            return 0
    return max((synced for _, synced in claims), default=0)


def _refuse_unknown(item: _Found, offset: int) -> None:
    try:
        check_frame(item.view, offset, len(item.view))
    except UnknownKind as error:
        raise UnknownVersion(
            f"{item.path} holds a frame at byte {offset} that this version does not know ({error.why}): read the "
            "directory with the version that wrote it",
            path=item.path,
        ) from None
    except BadFrame:
        return


def _refused(path: str, offset: int, why: str) -> CorruptFile:
    return CorruptFile(path, offset, f"{why}; open the directory with `topics serve` once, which repairs or explains")
