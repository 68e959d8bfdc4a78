"""The WAL of the Rust program: which files of a group follow each other, and how far each holds whole frames.

It leaves no trace of what was synced, so a tail is torn only where nothing whole lies behind it and no file follows;
anything else is damage, which is refused, or, in salvage, read past. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from topics.format.control import BadBody, FileMark, decode_mark
from topics.format.frame import BadFrame, Kind, UnknownKind, check_frame, decode_frame
from topics.format.ops import find_frames, scan_wal
from topics.format.rustsnapshot import RustSnapshot
from topics.host.fs import Fs, read_exact
from topics.model.errors import CorruptFile, UnknownVersion
from topics.storage.paths import FLAT, Paths, is_group, wal_name, wal_number
from topics.storage.rust.report import Finding, ImportReport
from topics.storage.walfile import WalFile
from topics.storage.walread import FileRead

_ZEROS: Final = 8
_FIRST_BYTES: Final = 4096
OURS: Final = 64
"""Kinds from here on are frames that only we write."""


@dataclass(slots=True)
class RustGroup:
    key: str
    reads: list[FileRead] = field(default_factory=list)
    """From the snapshot's position on, in order; `start` is where its frames end in the first."""


def group_files(fs: Fs, paths: Paths) -> dict[str, list[int]]:
    """The numbers of the WAL files, by group."""
    if not fs.is_dir(paths.wal):
        return {}
    keys = [FLAT, *sorted(name for name in fs.list(paths.wal) if is_group(name))]
    names = {key: [wal_number(name) for name in fs.list(paths.group(key))] for key in keys}
    found = {key: sorted(number for number in numbers if number is not None) for key, numbers in names.items()}
    return {key: numbers for key, numbers in found.items() if numbers}


def begins_as_ours(fs: Fs, path: str) -> bool:
    """Whether a WAL file begins with the mark that each of ours begins with, and none of the Rust program."""
    file = fs.open(path)
    try:
        data = read_exact(file, 0, min(file.size(), _FIRST_BYTES))
        frame = decode_frame(data, 0, len(data))
        return frame.kind >= OURS or (
            frame.kind == Kind.CHECKPOINT_MARK and isinstance(decode_mark(frame.body), FileMark)
        )
    except (BadFrame, BadBody):
        return False
    finally:
        file.close()


def begins_as_theirs(fs: Fs, path: str) -> bool:
    """Whether a WAL file begins with a frame, or with the zeros of one that nothing was written to. Somebody else's
    file of that name does not."""
    file = fs.open(path)
    try:
        size = file.size()
        if not size:
            return True
        view = file.map()
        if not any(view[:_ZEROS]):
            return True
        check_frame(view, 0, size)
        return True
    except UnknownKind:
        return True  # told by whoever reads on
    except BadFrame:
        return False
    finally:
        file.close()


class RustGroups:
    def __init__(self, fs: Fs, paths: Paths, snapshot: RustSnapshot, salvage: bool, report: ImportReport) -> None:
        self.fs = fs
        self.paths = paths
        self.snapshot = snapshot
        self.salvage = salvage
        self.report = report
        self.suspect: set[str] = set()
        """Files that hold bytes nobody took over."""

    def read(self) -> list[RustGroup]:
        return [self._group(key, numbers) for key, numbers in group_files(self.fs, self.paths).items()]

    def _group(self, key: str, numbers: list[int]) -> RustGroup:
        directory = self.paths.group(key)
        file, offset = self.snapshot.position(key) or (0, 0)
        if numbers[-1] < file:
            # The file of the position goes only with its whole group, and a group begun again counts from 1.
            why = f"the snapshot knows it up to file {file}, its files end with {numbers[-1]}"
            self.report.add(Finding("group_restarted", path=directory, why=why))
            file, offset = 0, 0
        file = max(file, 1)
        group = RustGroup(key)
        wanted = range(file, numbers[-1] + 1)
        for number in wanted:
            path = f"{directory}/{wal_name(number)}"
            if number not in numbers:
                self._damage(CorruptFile(path, 0, "it is missing, but the snapshot or a later file needs it"))
                continue
            read = self._open(number, path)
            if number == file:
                read.start = offset
            self._scan(read, last=number == numbers[-1])
            group.reads.append(read)
        return group

    def _open(self, number: int, path: str) -> FileRead:
        file = self.fs.open(path)
        size = file.size()
        if size > 0xFFFF_FFFF:
            raise CorruptFile(path, 0, f"it has {size} bytes; no WAL file is so long")
        view = file.map() if size else memoryview(b"")
        return FileRead(WalFile(number, path, file, size), size, view, 0)

    def _scan(self, read: FileRead, last: bool) -> None:
        """From the first byte where that works: the position need not lie between two frames, for the Rust program may
        have gone on in front of it."""
        scan = scan_wal(read.view, 0, read.size, read.entries)
        if scan.stop < read.start:
            read.entries.clear()
            if read.start >= read.size:
                return
            scan = scan_wal(read.view, read.start, read.size, read.entries)
        read.scans.append(scan)
        if scan.reason in ("end", "zeros"):
            return
        self._refuse_unknown(read, scan.stop)
        path = read.wal.path
        behind = find_frames(read.view, scan.stop + 1, read.size)
        if last and behind < 0:
            self.report.add(Finding("torn_tail", path=path, offset=scan.stop, why=scan.why))
            return
        what = f"whole frames follow at byte {behind}" if behind >= 0 else "a later file follows"
        read.damaged = True
        self._damage(CorruptFile(path, scan.stop, f"{scan.why}, and {what}"))
        start = behind
        while 0 <= start < read.size:
            scan = scan_wal(read.view, start, read.size, read.entries)
            read.scans.append(scan)
            if scan.reason in ("end", "zeros"):
                return
            start = find_frames(read.view, max(scan.stop, start) + 1, read.size)

    def _refuse_unknown(self, read: FileRead, at: int) -> None:
        try:
            check_frame(read.view, at, read.size)
        except UnknownKind as error:
            message = f"{read.wal.path} holds a frame at byte {at} that this version does not know: {error.why}"
            raise UnknownVersion(message, path=read.wal.path, offset=at) from None
        except BadFrame:
            return

    def _damage(self, error: CorruptFile) -> None:
        if not self.salvage:
            raise error
        self.suspect.add(error.path)
        self.report.add(Finding("damage", path=error.path, offset=error.offset, why=error.why))
