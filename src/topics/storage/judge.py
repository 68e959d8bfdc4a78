"""Segments as found at start, judged once replay has told what was deleted. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.format.container import BadContainer
from topics.format.control import LostReason
from topics.format.manifest import Manifest, decode_manifest
from topics.host.fs import Fs, read_file
from topics.model.errors import CorruptFile
from topics.storage.alive import live_runs
from topics.storage.partfile import FOLDER
from topics.storage.paths import segment_first
from topics.storage.replay import Recovered
from topics.storage.segment import Segment
from topics.storage.topic import Topic


@dataclass(slots=True)
class TopicFiles:
    """What has to be done to one topic's directory before it is used."""

    topic: Topic
    rewrite_manifest: bool = False
    went: bool = False
    """A pair that the snapshot lists was dropped since."""
    unlisted: list[str] = field(default_factory=list)
    """Names that nothing refers to."""


def judge(fs: Fs, recovered: Recovered, salvage: bool) -> tuple[list[TopicFiles], list[CorruptFile]]:
    work: list[TopicFiles] = []
    damage: list[CorruptFile] = []
    for topic in recovered.topics.values():
        files = _judge_topic(fs, topic, recovered, damage)
        if files is not None:
            work.append(files)
    if damage and not salvage:
        raise damage[0]
    return work, damage


def _judge_topic(fs: Fs, topic: Topic, recovered: Recovered, damage: list[CorruptFile]) -> TopicFiles | None:
    if not topic.segments and not fs.is_dir(topic.directory):
        return None
    names = set(fs.list(topic.directory)) - {FOLDER} if fs.is_dir(topic.directory) else set()
    files = TopicFiles(topic)
    kept: list[Segment] = []
    absent = topic.handles.absent or ()
    recount = any(segment.path("data") in absent for segment in topic.segments)
    for segment in topic.segments:
        if _needless(topic, segment, names):
            files.went = True
            continue
        problem = _problem(fs, segment)
        if problem is not None:
            damage.append(problem)
            _lose(topic, segment, recovered)
            recount = True
            continue
        kept.append(segment)
    topic.segments = kept
    if recount:  # what was taken out of the counts for a pair that is not there was a guess
        topic.live, topic.bytes = topic.measure(topic.dead.floor + 1, topic.head)
        topic.ordered = topic.published()
    manifest = _manifest(fs, topic)
    if manifest is not None:  # a flag pass after the snapshot was seen by others: its number never falls back
        passes = {entry.first: entry.generation for entry in manifest.segments}
        for segment in kept:
            segment.generation = max(segment.generation, passes.get(segment.first_seq, 0))
    wanted = Manifest(topic.id, [segment.entry() for segment in kept])
    files.rewrite_manifest = bool(names) and manifest != wanted
    listed = {segment.first_seq for segment in kept}
    files.unlisted = sorted(
        name
        for name in names
        if name.endswith(".tmp") or ((first := segment_first(name)) is not None and first not in listed)
    )
    return files


def _needless(topic: Topic, segment: Segment, names: set[str]) -> bool:
    """A pair without a live record may have been dropped since the snapshot, whole or in part. One whose files are
    all there and that is still active stays: it is the place of the next records."""
    last = segment.end_seq - 1
    dead = topic.dead
    gone = last <= dead.floor or dead.count(segment.first_seq, last) == segment.count
    return gone and (segment.sealed or segment.path("data").rsplit("/", 1)[1] not in names)


def _problem(fs: Fs, segment: Segment) -> CorruptFile | None:
    path = segment.path("data")
    try:
        size = fs.open(path).size()
    except FileNotFoundError:
        return CorruptFile(path, 0, "the file is missing, and it holds live records")
    if size < segment.data_len:
        return CorruptFile(path, size, f"it ends here, but {segment.data_len} bytes were synced")
    return None


def _lose(topic: Topic, segment: Segment, recovered: Recovered) -> None:
    """Salvage: the records of a pair that cannot be trusted are lost and said to be; what was deleted of it is not."""
    first, last = segment.first_seq, segment.end_seq - 1
    for low, high in live_runs(topic, max(first, topic.dead.floor + 1), last):
        topic.lost.add(low, high, LostReason.CORRUPT)
        recovered.announce.setdefault(topic.id, []).append((low, high, LostReason.CORRUPT))
    topic.dead.mark(first, last)
    topic.dirty = True


def _manifest(fs: Fs, topic: Topic) -> Manifest | None:
    try:
        return decode_manifest(read_file(fs, f"{topic.directory}/MANIFEST"))
    except (FileNotFoundError, BadContainer):
        return None
