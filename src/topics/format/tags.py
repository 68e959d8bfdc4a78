"""The `.tags` and `.keys` sidecars of a sealed segment: sorted names, and for each the records that carry it.
Rebuildable.

A container "PTT1" (tags) or "PTK1" (keys) whose body is read in place, little-endian, every column a multiple of
4 bytes:

    u64  first_seq
    u32  names        number of distinct names
    u32  postings     number of records with one
    u32  name_ends    x names      end of each name in the text below
    u32  post_ends    x names      end of each name's postings
    u32  positions    x postings   seq - first_seq, ascending per name
    ...  text                      the names back to back, in byte order
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from topics.format.checksum import Buffer
from topics.format.container import BadContainer, check, wrap
from topics.format.control import Selector, SelectorOp

MAGIC: Final = b"PTT1"
KEYS_MAGIC: Final = b"PTK1"
_HEAD: Final = struct.Struct("<QII")
_U32: Final = np.dtype("<u4")


def build_tags(tags: Sequence[bytes | None], first_seq: int, magic: bytes = MAGIC) -> bytes:
    """The sidecar of a segment whose record number i (seq first_seq + i) has tags[i]."""
    postings: dict[bytes, list[int]] = {}
    for position, tag in enumerate(tags):
        if tag is not None:
            found = postings.get(tag)
            if found is None:
                postings[tag] = [position]
            else:
                found.append(position)
    names = sorted(postings)
    positions = np.fromiter((p for name in names for p in postings[name]), _U32)
    name_ends = np.cumsum(np.fromiter((len(name) for name in names), np.int64)).astype(_U32)
    post_ends = np.cumsum(np.fromiter((len(postings[name]) for name in names), np.int64)).astype(_U32)
    head = _HEAD.pack(first_seq, len(names), len(positions))
    columns = (name_ends, post_ends, positions)
    return wrap(magic, b"".join((head, *(column.tobytes() for column in columns), *names)))


class TagIndex:
    """A sidecar read in place: the buffer (a mapping, usually) must outlive it. Checked whole, once, here."""

    __slots__ = ("_name_ends", "_positions", "_post_ends", "_text", "first_seq")

    def __init__(self, buf: Buffer, magic: bytes = MAGIC) -> None:
        body = check(magic, buf)
        if len(body) < _HEAD.size:
            raise BadContainer("the body has no head")
        self.first_seq, names, postings = _HEAD.unpack_from(body)
        text_at = _HEAD.size + 4 * (2 * names + postings)
        if text_at > len(body):
            raise BadContainer("the body is shorter than its columns")
        at = _HEAD.size
        self._name_ends = np.frombuffer(body, _U32, names, at)
        self._post_ends = np.frombuffer(body, _U32, names, at + 4 * names)
        self._positions = np.frombuffer(body, _U32, postings, at + 8 * names)
        self._text = body[text_at:]
        for ends, total in ((self._name_ends, len(self._text)), (self._post_ends, postings)):
            if int(ends[-1]) != total if names else total:
                raise BadContainer("a column does not end where the next begins")
            if np.any(ends[1:] < ends[:-1]):
                raise BadContainer("a column of ends falls")

    def find(self, selector: Selector) -> npt.NDArray[np.uint64]:
        """Seqs of the records whose name the selector matches, ascending."""
        value = selector.value.encode()
        first = self._search(value)
        if selector.op == SelectorOp.GLOB:
            last = self._search_end(value)
        else:
            last = first + (first < len(self._name_ends) and self._name(first) == value)
        start = int(self._post_ends[first - 1]) if first else 0
        end = int(self._post_ends[last - 1]) if last else 0
        seqs = self._positions[start:end].astype(np.uint64)
        if last - first > 1:
            seqs.sort()
        seqs += np.uint64(self.first_seq)
        return seqs

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        value = prefix.encode()
        return [str(self._name(i), "utf-8") for i in range(self._search(value), self._search_end(value))]

    def _name(self, i: int) -> bytes:
        start = int(self._name_ends[i - 1]) if i else 0
        return bytes(self._text[start : int(self._name_ends[i])])

    def _search(self, value: bytes) -> int:
        return bisect_left(range(len(self._name_ends)), value, key=self._name)

    def _search_end(self, prefix: bytes) -> int:
        """The first name behind those that begin with `prefix`: they stand together, as the names are sorted."""
        size = len(prefix)
        return bisect_left(range(len(self._name_ends)), True, key=lambda i: self._name(i)[:size] > prefix)
