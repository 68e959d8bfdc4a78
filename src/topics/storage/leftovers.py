"""What a checkpoint made before it failed.

Its records are in the WAL still. The next checkpoint makes the same files again, but only while the same records live:
after a delete its pairs begin elsewhere. What nobody would write over or remove before the next start goes at once, for
a disk that is full fails checkpoints, and whoever deletes records wants that room.
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.format.container import BadContainer
from topics.format.manifest import decode_manifest
from topics.host.fs import Fs, read_file
from topics.storage.handles import Handles
from topics.storage.segment import Segment
from topics.storage.topic import Topic
from topics.storage.walfile import discard


def discard_unlisted(fs: Fs, handles: Handles, topic: Topic, begun: Iterable[Segment]) -> None:
    """Remove the files of those pairs that the topic does not have and no MANIFEST names. One that could not be made
    durable may be in place all the same and be what the next start reads; where it cannot be read, everything stays."""
    listed = {segment.first_seq for segment in topic.segments}
    try:
        listed |= {entry.first for entry in decode_manifest(read_file(fs, f"{topic.directory}/MANIFEST")).segments}
    except FileNotFoundError:
        pass
    except (OSError, EOFError, BadContainer):
        return
    for segment in begun:
        if segment.first_seq not in listed:
            remove_pair(fs, handles, segment)


def remove_pair(fs: Fs, handles: Handles, segment: Segment) -> None:
    """Those parts that are there; a leftover is removed at the next start instead."""
    handles.forget(segment)
    for part in ("idx", "tags", "keys", "data"):
        discard(fs, segment.path(part))
