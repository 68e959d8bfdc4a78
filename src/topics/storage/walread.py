"""Reading the WAL of one group at start: which files follow each other, how far each is valid, and is that proven.

Nothing here writes. A frame that is not valid is one of two things. Behind everything that was ever proven durable it
is a torn tail: a write that was under way. Below a proven length it is damage, and the store refuses to start on it.
Proof is a file's valid length in the first frame of the next, or in CURRENT, or a mark further on that states what
had been synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from topics.format.control import BadBody, FileMark, decode_mark
from topics.format.current import Current
from topics.format.frame import BadFrame, Kind, UnknownKind, check_frame, decode_frame
from topics.format.ops import find_frames, find_sync_marks, scan_wal
from topics.format.prepared import WalScan
from topics.format.snapshot import Position
from topics.format.walscan import OFFSETS_END, lies_beyond
from topics.host.fs import File, Fs, read_file
from topics.model.errors import CorruptFile, UnknownVersion
from topics.storage.paths import Paths, wal_name, wal_number
from topics.storage.walfile import WalFile

_FILE_BYTES: Final = 64 * 1024 * 1024
"""A missing file whose length nobody tells is taken for one of this size."""
_NEVER: Final = 1 << 62
"""Above any offset."""
_STEP: Final = 1 << 16


@dataclass(slots=True)
class FileRead:
    """One WAL file as found."""

    wal: WalFile
    size: int
    view: memoryview
    start: int
    """Where replay begins: frames before it are contained in the snapshot."""
    entries: bytearray = field(default_factory=bytearray)
    scans: list[WalScan] = field(default_factory=list)
    """One, or, where damage was salvaged, one per stretch between damage."""
    damaged: bool = False


@dataclass(slots=True)
class GroupRead:
    key: str
    directory: str
    files: list[FileRead] = field(default_factory=list)
    """From the position on, in order."""
    empty: list[int] = field(default_factory=list)
    """Numbers of files without a whole first submission: they take part in nothing."""
    older: list[tuple[int, int]] = field(default_factory=list)
    """(number, valid length) of files below the position, which wait to be removed."""
    damage: list[CorruptFile] = field(default_factory=list)
    """What salvage went past."""
    lost_bytes: int = 0
    """At most so many bytes of frames are missing."""
    lost_before: tuple[int, int] = (0, 0)
    """File and offset from which on nothing is missing."""
    highest: int = 0


class GroupReader:
    def __init__(self, fs: Fs, paths: Paths, key: str, position: Position, salvage: bool) -> None:
        self.fs = fs
        self.position = position
        self.salvage = salvage
        self.group = GroupRead(key, paths.group(key))

    def read(self) -> GroupRead:
        group = self.group
        if not self.fs.is_dir(group.directory):
            numbers: list[int] = []
        else:
            numbers = sorted(n for name in self.fs.list(group.directory) if (n := wal_number(name)) is not None)
        group.highest = numbers[-1] if numbers else 0
        lengths = self._current(numbers)
        found: dict[int, FileRead] = {}
        for number in numbers:
            path = f"{group.directory}/{wal_name(number)}"
            file = self.fs.open(path, write=True)
            size = file.size()
            if number < self.position.file:
                group.older.append((number, _stated_length(file, size, lengths.get(number))))
                continue
            view = file.map() if size else memoryview(b"")
            found[number] = FileRead(WalFile(number, path, file, size), size, view, 0)
        self._scan(self._chain(found), lengths)
        return group

    def _current(self, numbers: list[int]) -> dict[int, int]:
        """Valid lengths by CURRENT; a missing or doubtful one says nothing. A file that it names is there, unless the
        snapshot has all of it."""
        try:
            current = Current.decode(read_file(self.fs, f"{self.group.directory}/CURRENT"))
        except (FileNotFoundError, ValueError):
            return {}
        lengths = {number: length for name, length in current.sealed if (number := wal_number(name)) is not None}
        active = wal_number(current.active)
        for number in sorted(lengths) + ([active] if active is not None else []):
            if number >= self.position.file and number not in numbers and (number == active or lengths[number]):
                path = f"{self.group.directory}/{wal_name(number)}"
                self._damage(CorruptFile(path, 0, "it is missing, but CURRENT names it"))
                self._lose_file(number, lengths.get(number))
        return lengths

    def _chain(self, found: dict[int, FileRead]) -> list[tuple[FileRead, FileMark | None]]:
        """The files that follow each other, from the position to the highest, each with its first frame's statement."""
        marks = {number: self._stated(read) for number, read in found.items()}
        alive = [number for number in sorted(found) if marks[number] is not None]
        chain: list[int] = []
        number = alive[-1] if alive else 0
        length: int | None = None
        while number >= self.position.file and number:
            mark = marks.get(number)
            if mark is None:
                self._missing(number, number in found, found.get(number))
                if number not in found:
                    self._lose_file(number, length)
                    break
                chain.append(number)
                lower = [n for n in alive if n < number]
                number = lower[-1] if lower else 0
                continue
            chain.append(number)
            number, length = mark.previous, mark.previous_length
        if self.position.offset and self.position.file not in found:
            self._missing(self.position.file, False, None)
            self._lose_file(self.position.file, length if number == self.position.file else None)
        chain.reverse()
        for stray in found:
            if stray in chain:
                continue
            if marks[stray] is None:
                if found[stray].damaged or self._holds_proven(found[stray]):
                    chain = sorted([*chain, stray])
                else:
                    self.group.empty.append(stray)
            elif not (stray == self.position.file and self.position.offset >= found[stray].size):
                error = CorruptFile(found[stray].wal.path, 0, "it holds frames, but no later file follows it")
                self._damage(error)
                chain = sorted([*chain, stray])
        return [(found[number], marks[number]) for number in chain]

    def _stated(self, read: FileRead) -> FileMark | None:
        stated = _first_mark(read)
        if not isinstance(stated, CorruptFile):
            return stated
        if not (read.wal.number == self.position.file and 0 < self.position.offset <= read.size):
            self._damage(stated)
            self._lose_file(read.wal.number, read.size)
            read.damaged = True
        return None

    def _holds_proven(self, read: FileRead) -> bool:
        """A file without a valid first frame is one that was never begun, unless the snapshot's position or a mark in
        it says that frames were synced there. Damage below the position is not judged."""
        if read.wal.number == self.position.file and 0 < self.position.offset <= read.size:
            return True
        scan = scan_wal(read.view, 0, read.size, bytearray())
        proven = self._evidence(read, scan)
        if not proven:
            return False
        self._damage(CorruptFile(read.wal.path, 0, f"its first frame is not valid, but {proven} bytes had been synced"))
        return True

    def _missing(self, number: int, there: bool, read: FileRead | None) -> None:
        path = f"{self.group.directory}/{wal_name(number)}"
        why = "its first frame is not valid" if there else "it is missing, but a later file or the snapshot needs it"
        if there and number == self.position.file and read is not None and read.size >= self.position.offset > 0:
            return  # damage below the position is not judged
        self._damage(CorruptFile(path, 0, why))

    def _damage(self, error: CorruptFile) -> None:
        if not self.salvage:
            raise error
        self.group.damage.append(error)

    def _lose(self, number: int, end: int, size: int) -> None:
        """Up to `end` of this file frames of at most `size` bytes are missing."""
        group = self.group
        group.lost_bytes += size
        group.lost_before = max(group.lost_before, (number, end))

    def _lose_file(self, number: int, length: int | None) -> None:
        """A whole one, that was so long as far as anybody knows."""
        self._lose(number, _NEVER, _FILE_BYTES if length is None else length)

    def _scan(self, chain: list[tuple[FileRead, FileMark | None]], current: dict[int, int]) -> None:
        for index, (read, _) in enumerate(chain):
            number = read.wal.number
            if number == self.position.file:
                read.start = self.position.offset
            following = chain[index + 1][1] if index + 1 < len(chain) else None
            if following is not None:
                self._scan_proven(read, following.previous_length)
            else:
                self._scan_last(read, current.get(number, 0))
            read.wal.written = read.wal.synced = max(
                [scan.end for scan in read.scans] or [min(read.start, read.size)]
            )  # fmt: skip
            self.group.files.append(read)

    def _scan_proven(self, read: FileRead, proven: int) -> None:
        """Every byte up to `proven` was durable when the next file began."""
        if read.start >= proven:
            return
        if read.start > read.size:
            read.damaged = True
            why = f"it ends at byte {read.size}, but {proven} bytes were proven"
            self._damage(CorruptFile(read.wal.path, read.size, why))
            self._lose(read.wal.number, proven, proven - read.start)
            return
        end = min(proven, read.size)
        scan = scan_wal(read.view, read.start, end, read.entries)
        read.scans.append(scan)
        if scan.reason == "end" and end == proven:
            return
        why = scan.why if scan.reason != "end" else f"it ends at byte {end}, but {proven} bytes were proven"
        read.damaged = True
        self._damage(CorruptFile(read.wal.path, scan.stop, why))
        self._resync(read, scan, end)
        if end < proven:
            self._lose(read.wal.number, proven, proven - end)

    def _scan_last(self, read: FileRead, sealed: int) -> None:
        """`sealed` bytes are valid by CURRENT. It has no checksum, so it never makes a file shorter than its frames."""
        if read.start >= read.size:
            if sealed > max(read.start, read.size):
                why = f"it ends at byte {read.size}, but CURRENT knows {sealed} valid bytes"
                self._damage(CorruptFile(read.wal.path, read.size, why))
                self._lose(read.wal.number, sealed, sealed - read.start)
            return
        scan = scan_wal(read.view, read.start, read.size, read.entries)
        read.scans.append(scan)
        if scan.reason not in ("end", "zeros"):
            self._refuse_unknown(read, scan)
            sealed = max(sealed, self._evidence(read, scan))
        proven, why = sealed, f"{scan.why}, but {sealed} bytes had been synced"
        if scan.reason not in ("end", "zeros") and lies_beyond(read.view, scan.stop):
            proven, why = read.size, scan.why
        if proven <= scan.end:
            return
        read.damaged = True
        self._damage(CorruptFile(read.wal.path, scan.stop, why))
        self._resync(read, scan, max(min(proven, read.size), _written(read.view)))

    @staticmethod
    def _refuse_unknown(read: FileRead, scan: WalScan) -> None:
        """What a newer version wrote is never cut off as a torn tail."""
        try:
            check_frame(read.view, scan.stop, read.size)
        except UnknownKind as error:
            message = f"{read.wal.path} holds a frame at byte {scan.stop} that this version does not know: {error.why}"
            raise UnknownVersion(message, path=read.wal.path, offset=scan.stop) from None
        except BadFrame:
            return

    @staticmethod
    def _evidence(read: FileRead, scan: WalScan) -> int:
        """The largest synced offset that a credible mark behind the last whole submission states. One mark alone
        counts only if a frame or the end follows it: the bytes of a mark may also stand inside a record."""
        marks = find_sync_marks(read.view, scan.end, read.size, read.wal.number)
        claims = [(at, synced) for at, synced in marks if synced <= at]
        if not claims:
            return 0
        if len(claims) == 1:
            at = claims[0][0]
            end = decode_frame(read.view, at, read.size).end
            behind = scan_wal(read.view, end, read.size, bytearray())
            if behind.frames == 0 and behind.reason == "bad":
                return 0
        return max(synced for _, synced in claims)

    def _resync(self, read: FileRead, front: WalScan, end: int) -> None:
        """Salvage: the valid frames between the damage behind `front` and `end`, and how much is missing there."""
        whole, start = front.end, front.stop + 1
        frames_end = min(end, OFFSETS_END)
        while start < frames_end:
            at = find_frames(read.view, start, frames_end)
            if at < 0:
                break
            scan = scan_wal(read.view, at, end, read.entries)
            if scan.frames:
                read.scans.append(scan)
                self._lose(read.wal.number, at, at - whole)
                whole = scan.end
                if scan.reason in ("end", "zeros"):
                    return
            start = max(scan.stop, at) + 1
        self._lose(read.wal.number, end, max(end - whole, 0))


def _stated_length(file: File, size: int, stated: int | None) -> int:
    """The valid length of a file below the position: what CURRENT says of it, and where it says nothing, as of the file
    that was active when a life ended cleanly, where its frames end. Nobody replays it, so nothing is judged, and one
    that cannot be read is as long as it is."""
    if stated is not None and stated <= size:
        return stated
    try:
        return scan_wal(file.read_at(0, size), 0, size, bytearray()).end
    except OSError:
        return size


def _written(view: memoryview) -> int:
    """Where the zeros at the end begin."""
    end = len(view)
    while end:
        start = max(end - _STEP, 0)
        rest = bytes(view[start:end]).rstrip(b"\0")
        if rest:
            return start + len(rest)
        end = start
    return 0


def _first_mark(read: FileRead) -> FileMark | CorruptFile | None:
    """The statement of the first frame; None if the file has no whole first submission; CorruptFile if it has one that
    is not of this file."""
    try:
        frame = decode_frame(read.view, 0, read.size)
        mark = decode_mark(frame.body) if frame.kind == Kind.CHECKPOINT_MARK else None
    except UnknownKind as error:
        return CorruptFile(read.wal.path, 0, error.why)
    except BadBody as error:
        return CorruptFile(read.wal.path, 0, f"its first frame is not valid: {error}")
    except BadFrame:
        return None
    if isinstance(mark, FileMark) and mark.number == read.wal.number:
        return mark
    said = f"is of file {mark.number}" if isinstance(mark, FileMark) else "does not say which file this is"
    return CorruptFile(read.wal.path, 0, f"its first frame {said}")
