"""What a power cut leaves of the un-synced changes: any subset, in any order, whole, torn, zeroed or garbled.

A disk cache writes sectors back when it likes. So each un-synced sector ends on its own as

    old       what was durable before (or an un-synced version between the two)
    new       what was last written
    torn      its first bytes new, the others old
    zeroed    zeros
    garbled   new, with some bytes that nobody wrote

and the size of a file as anything between the durable one and the last one. Pure chance would almost never lose
everything, or keep everything but one early page, and these are the cuts that find mistakes; so each cut first draws
how it wants to be, and then the details.

With `keep_synced` (the promise of a sane device) damage touches changed bytes only: a byte that was made durable and
has that same value now keeps it, also in the middle of a garbled sector. A rewrite of equal bytes is thus harmless.
Without it damage takes the whole sector, and now and then some in front of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Literal

from topics.testing.inode import DirNode, FileNode, NameChanges

Mode = Literal["all_lost", "all_kept", "mixed"]
Fate = Literal["old", "new", "torn", "zeroed", "garbled"]
_DAMAGE: tuple[Fate, ...] = ("torn", "zeroed", "garbled")
_GARBLED_BYTES_MAX = 8


class Cut:
    """One power cut. `counters` gets what really happened: only outcomes that changed something count."""

    def __init__(self, rng: Random, mode: Mode | None, *, page: int, keep_synced: bool, counters: Counter[str]) -> None:
        self._rng = rng
        self._mode: Mode = mode or rng.choices(("all_lost", "all_kept", "mixed"), (15, 10, 75))[0]
        self._page = page
        self._keep_synced = keep_synced
        self._counters = counters
        self._something = False

    def apply(self, root: DirNode, changes: NameChanges) -> None:
        self._names(changes)
        changes.pending.clear()
        self._tree(root, set())
        if self._something and self._mode != "mixed":
            self._counters[self._mode] += 1

    def _tree(self, directory: DirNode, done: set[FileNode]) -> None:
        directory.live = dict(directory.durable)
        for node in directory.live.values():
            if isinstance(node, DirNode):
                self._tree(node, done)
            elif node not in done:
                # Two names of one file are two ways to the same bytes: they are cut once.
                done.add(node)
                self._file(node)

    # Names.

    def _names(self, changes: NameChanges) -> None:
        rng = self._rng
        keep = {"all_lost": 0.0, "all_kept": 1.0, "mixed": rng.choice((0.2, 0.5, 0.9))}[self._mode]
        for change in changes.pending:
            self._something = True
            survives = rng.random() < keep
            if not survives:
                self._counters["name_lost"] += 1
                continue
            directory, name, node = change.directory, change.name, change.node
            if node is None:
                directory.durable.pop(name, None)
                continue
            directory.durable[name] = node
            if change.source is None:
                continue
            source, source_name = change.source
            if source.durable.get(source_name) is not node:
                continue
            # A directory has one parent: only a file can end with both names.
            if self._mode == "mixed" and isinstance(node, FileNode) and rng.random() < 0.3:
                self._counters["rename_both"] += 1
            else:
                del source.durable[source_name]

    # Bytes.

    def _file(self, node: FileNode) -> None:
        unsynced = node.dirty | node.forgotten
        if not unsynced and len(node.live) == len(node.durable):
            return
        self._something = True
        survived = bytearray(node.durable)
        survived.extend(bytes(max(0, len(node.live) - len(survived))))
        sector = node.sector
        sectors: dict[int, list[tuple[int, int]]] = {}
        for start, end in unsynced:
            for index in range(start // sector, (end - 1) // sector + 1):
                part = (max(start, index * sector), min(end, (index + 1) * sector))
                sectors.setdefault(index, []).append(part)
        fate_of = self._fates(sectors, sector)
        earlier_lost = later_kept = False
        for index, parts in sectors.items():
            if self._keep_synced and all(_unchanged(node, start, end) for start, end in parts):
                continue
            fate = fate_of(index)
            self._sector(node, survived, index, parts, fate)
            if any(survived[start:end] == node.live[start:end] for start, end in parts):
                later_kept |= earlier_lost
            else:
                earlier_lost = True
        if later_kept:
            self._counters["later_survived_earlier_lost"] += 1
        if node.reserved:
            self._counters["reserved_lost"] += earlier_lost
            self._counters["reserved_later_survived_earlier_lost"] += later_kept
        size = self._size(len(node.durable), len(node.live), sector)
        if size != len(node.live):
            self._counters["size_lost"] += 1
        del survived[size:]
        node.settle(survived)

    def _fates(self, sectors: dict[int, list[tuple[int, int]]], sector: int) -> Callable[[int], Fate]:
        """How the sectors of one file end: the shape is drawn once per file, the fates as they are asked for."""
        rng = self._rng
        if self._mode == "all_lost":
            return lambda index: "old"
        if self._mode == "all_kept":
            return lambda index: "new"
        shape = rng.choice(("prefix", "suffix", "pages", "sectors", "sectors"))
        border = rng.choice(list(sectors)) if sectors else 0
        kept_pages = {index * sector // self._page: rng.random() < 0.5 for index in sectors}
        keep = rng.choice((0.1, 0.5, 0.9))
        damage = rng.choice((0.0, 0.05, 0.4))

        def fate_of(index: int) -> Fate:
            if rng.random() < damage or (shape == "prefix" and index == border):
                return rng.choice(_DAMAGE)
            if shape == "prefix":
                new = index < border
            elif shape == "suffix":
                new = index >= border
            elif shape == "pages":
                new = kept_pages[index * sector // self._page]
            else:
                new = rng.random() < keep
            return "new" if new else "old"

        return fate_of

    def _sector(
        self, node: FileNode, survived: bytearray, index: int, parts: list[tuple[int, int]], fate: Fate
    ) -> None:
        rng, live = self._rng, node.live
        first, last = parts[0][0], parts[-1][1]
        if fate == "old":
            past = node.past.get(index)
            # `survived` holds the durable bytes already; an un-synced version in between is the other kind of old.
            if past is not None and self._mode == "mixed" and rng.random() < 0.5:
                base = index * node.sector
                for start, end in parts:
                    piece = past[start - base : end - base]
                    survived[start : start + len(piece)] = piece
            return
        border = last
        if fate == "torn":
            border = rng.randint(first + 1, last - 1) if last - first > 1 else first
        for start, end in parts:
            end = min(end, border)
            if start < end:
                survived[start:end] = live[start:end]
        if fate == "new":
            return
        self._counters[fate] += 1
        if fate == "torn":
            return
        if self._keep_synced:
            positions = [at for start, end in parts for at in range(start, end) if not _unchanged(node, at, at + 1)]
        else:
            first_hit = max(index - rng.choice((0, 0, 1, 4)), 0)
            positions = list(range(first_hit * node.sector, min((index + 1) * node.sector, len(survived))))
            self._counters["synced_damaged"] += any(_unchanged(node, at, at + 1) for at in positions)
        if fate == "garbled":
            positions = rng.sample(positions, min(len(positions), rng.randint(1, _GARBLED_BYTES_MAX)))
        for at in positions:
            survived[at] = 0 if fate == "zeroed" else rng.randrange(256)

    def _size(self, durable: int, live: int, sector: int) -> int:
        if durable == live or self._mode == "all_kept":
            return live
        if self._mode == "all_lost":
            return durable
        rng = self._rng
        low, high = min(durable, live), max(durable, live)
        between = rng.randint(low, high)
        aligned = min(max(between - between % sector, low), high)
        return rng.choices((live, durable, between, aligned), (50, 20, 15, 15))[0]


def _unchanged(node: FileNode, start: int, end: int) -> bool:
    """Whether these un-synced bytes were durable before with the values they have now."""
    return end <= len(node.durable) and node.durable[start:end] == node.live[start:end]
