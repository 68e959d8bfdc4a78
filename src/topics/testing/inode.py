"""What a fake disk is made of: files and directories, each as the process sees it and as the platter holds it.

`live` is the page cache: every read sees it, and it outlives the process. `durable` is what a sync has proven. Between
the two lie the un-synced changes, whose fate `topics.testing.cut` decides when the power goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.testing.ranges import Ranges


class FileNode:
    """A file without its name. Bytes are tracked one by one, so that a sector may hold synced and un-synced ones."""

    __slots__ = ("dirty", "durable", "forgotten", "live", "past", "reserved", "sector")

    def __init__(self, sector: int) -> None:
        self.sector = sector
        self.live = bytearray()
        self.durable = bytearray()
        self.dirty = Ranges()
        """Changed since they were last made durable; the next sync takes them."""
        self.forgotten = Ranges()
        """Changed, but a sync of them failed and the kernel calls them clean: no later sync takes them."""
        self.reserved = False
        """It got blocks before it got bytes, and has not been overwritten as a whole."""
        self.past: dict[int, bytes] = {}
        """Sectors whose un-synced bytes were overwritten, as they were before: the kernel may have written those."""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        live = self.live
        end = offset + len(data)
        if self.dirty and self.dirty.meets(offset, end):
            self._remember(offset, end)
        # A write beyond the end leaves a hole that reads as zeros, and the hole is as un-synced as the rest.
        start = min(offset, len(live))
        if offset > len(live):
            live.extend(bytes(offset - len(live)))
        live[offset:end] = data
        self.reserved = self.reserved and end - offset < len(live)
        self._changed(start, end)

    def resize(self, size: int) -> None:
        live = self.live
        if size > len(live):
            start = len(live)
            live.extend(bytes(size - start))
            self._changed(start, size)
        else:
            del live[size:]
            self.dirty.cut(size)
            self.forgotten.cut(size)
            self.past = {index: old for index, old in self.past.items() if index * self.sector < size}

    def sync(self) -> None:
        live, durable = self.live, self.durable
        _resize(durable, len(live))
        for start, end in self.dirty:
            durable[start:end] = live[start:end]
        self.dirty.clear()
        self.past.clear()

    def sync_range(self, offset: int, end: int) -> None:
        """Make the sectors of offset..end durable, and the size needed to read up to `end`, and nothing else."""
        live, durable, sector = self.live, self.durable, self.sector
        if len(durable) < end:
            _resize(durable, end)
        start = offset - offset % sector
        end = min(end + -end % sector, len(live), len(durable))
        for low, high in self.dirty.within(start, end):
            durable[low:high] = live[low:high]
        self.dirty.remove(start, end)
        for index in range(start // sector, end // sector):
            self.past.pop(index, None)

    def forget_unsynced(self) -> None:
        for start, end in self.dirty:
            self.forgotten.add(start, end)
        self.dirty.clear()

    def settle(self, survived: bytearray) -> None:
        """After a power cut: what is left is all there is, in both images."""
        self.live = survived
        self.durable = bytearray(survived)
        self.dirty.clear()
        self.forgotten.clear()
        self.past.clear()

    def copy(self) -> FileNode:
        other = FileNode(self.sector)
        other.live = bytearray(self.live)
        other.durable = bytearray(self.durable)
        other.dirty = self.dirty.copy()
        other.forgotten = self.forgotten.copy()
        other.reserved = self.reserved
        other.past = dict(self.past)
        return other

    def _changed(self, start: int, end: int) -> None:
        self.dirty.add(start, end)
        if self.forgotten:
            self.forgotten.remove(start, end)

    def _remember(self, start: int, end: int) -> None:
        sector = self.sector
        for low, high in self.dirty.within(start, end):
            for index in range(low // sector, (high - 1) // sector + 1):
                self.past[index] = bytes(self.live[index * sector : (index + 1) * sector])


class DirNode:
    __slots__ = ("durable", "live")

    def __init__(self) -> None:
        self.live: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | DirNode


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """An un-synced change of one directory entry; a rename changes two, and goes through `source` too."""

    directory: DirNode
    name: str
    node: Node | None
    """What the name means from now on; None = it is gone."""
    source: tuple[DirNode, str] | None = None
    """Of a rename: the entry that went away."""


@dataclass(slots=True)
class NameChanges:
    """The un-synced name changes of a disk, oldest first."""

    pending: list[NameChange] = field(default_factory=list)

    def copy(self, twins: Twins) -> NameChanges:
        """The same changes, of the disk that the twins belong to."""
        return NameChanges(
            [
                NameChange(
                    twins.directory(change.directory),
                    change.name,
                    None if change.node is None else twins.node(change.node),
                    None if change.source is None else (twins.directory(change.source[0]), change.source[1]),
                )
                for change in self.pending
            ]
        )

    def add(self, directory: DirNode, name: str, node: Node | None) -> None:
        self.pending.append(NameChange(directory, name, node))

    def add_rename(self, source: tuple[DirNode, str], directory: DirNode, name: str, node: Node) -> None:
        self.pending.append(NameChange(directory, name, node, source))

    def sync(self, directory: DirNode) -> None:
        """Make the entries of `directory` durable.

        Of a rename between two directories the other half stays un-synced, with one exception: a source entry is never
        gone for good before the target is there, for no file system loses a file by moving it.
        """
        left: list[NameChange] = []
        for change in self.pending:
            source = change.source
            if source is not None and source[0] is directory and change.directory is not directory:
                left = [c for c in left if (c.directory, c.name) != (change.directory, change.name)]
                assert change.node is not None
                change.directory.durable[change.name] = change.node
            elif change.directory is not directory:
                left.append(change)
            elif source is not None and source[0] is not directory:
                left.append(NameChange(source[0], source[1], None))
        self.pending = left
        directory.durable = dict(directory.live)


class Twins:
    """A deep copy of a disk's nodes, made as they are asked for. Every node has one twin: shared files stay shared."""

    def __init__(self) -> None:
        self._files: dict[FileNode, FileNode] = {}
        self._dirs: dict[DirNode, DirNode] = {}

    def node(self, node: Node) -> Node:
        return self.directory(node) if isinstance(node, DirNode) else self.file(node)

    def file(self, node: FileNode) -> FileNode:
        twin = self._files.get(node)
        if twin is None:
            twin = self._files[node] = node.copy()
        return twin

    def directory(self, node: DirNode) -> DirNode:
        twin = self._dirs.get(node)
        if twin is None:
            twin = self._dirs[node] = DirNode()
            twin.live = {name: self.node(child) for name, child in node.live.items()}
            twin.durable = {name: self.node(child) for name, child in node.durable.items()}
        return twin


def _resize(data: bytearray, size: int) -> None:
    if size > len(data):
        data.extend(bytes(size - len(data)))
    else:
        del data[size:]
