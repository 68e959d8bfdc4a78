"""The pipeline: what a topic has sealed since the last round becomes Parquet, and one commit of its history table.

    mark of the table ─▶ plan: where those seqs are ─▶ tasks: decode, check, write Parquet ─▶ one Delta commit

A round that dies leaves files that no version names, and nothing else: the next one starts from the same mark. The
server is told the mark as group `export` of the topic, so that the lag is seen and retention may wait for it; nobody
reads it there.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from topics.host.fs import OsFs
from topics.model.errors import Conflict, InvalidRequest, NotFound, RecordsLost, StorageError, TopicsError, Unreachable
from topics.spark.aside import Aside, leftovers, put_aside
from topics.spark.doing import Doing
from topics.spark.history import History, discard
from topics.spark.options import Options, without_scheme
from topics.spark.origin import Origin, open_origin
from topics.spark.parts import Shred, Writer
from topics.spark.places import Head, Loss, SegmentPlace, Span, joined_losses
from topics.spark.progress import Progress
from topics.spark.ranges import without
from topics.spark.server_origin import ServerOrigin
from topics.spark.tasks import write_files
from topics.spark.words import FLAGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP: Final = "export"
_GLOB: Final = re.compile(r"[*?[]")
_MISREAD: Final = re.compile(r"[\x00-\x1f\x7f\\]|%[0-9A-Fa-f]{2}")
"""In the name of a folder: Delta takes it for nothing, for a slash, and for one character."""

Recreated = Literal["fail", "rebuild", "new"]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    table: str
    """Folder of all tables; each topic has its own below it."""
    url: str | None = None
    path: str | None = None
    token: str | None = field(default=None, repr=False)
    topics: str = "*"
    tail: bool = False
    """Export durable records that are not sealed yet, too."""
    shreds: tuple[Shred, ...] = ()
    gap_fails: bool = False
    report_corrupt: bool = False
    """Records that fail their check are noted as lost; else they stop the export of their topic."""
    recreated: Recreated = "fail"
    compact: bool = True
    drop_lost: bool = False
    """A table that is written anew may lose what its topic has lost."""
    hold: bool | None = None
    """Whether retention waits until records are exported; None: as group `export` says, and a new one has no guard."""

    def origin(self) -> Origin:
        if self.hold and self.url is None:
            raise InvalidRequest("--hold asks a running server to wait: give its --url, not --path")
        return open_origin(Options(path=self.path, url=self.url, token=self.token, words=FLAGS))


@dataclass(frozen=True, slots=True)
class Exported:
    """What a round did for one topic."""

    topic: str
    start_seq: int
    end_seq: int
    """Equal to `start_seq`: there was nothing to do."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    lag: int = 0
    """Records that are not in the table yet."""
    gaps: tuple[tuple[int, int, str], ...] = ()
    joined: int = 0
    """Small files that compaction made fewer."""
    error: str | None = None
    note: str | None = None
    """What went wrong and stopped nothing."""


@dataclass(frozen=True, slots=True)
class Status:
    topic: str
    folder: str
    exists: bool
    rows: int
    files: int
    bytes: int
    next_seq: int
    head_seq: int
    lag: int
    gaps: tuple[tuple[int, int, str], ...]
    problem: str | None = None


def chosen(options: PipelineOptions, origin: Origin) -> tuple[dict[str, Head], dict[str, str]]:
    """Where the topics stand that are meant, and of those named without a glob, why one has no history to export.
    InvalidRequest if there is nothing to export at all."""
    patterns = [pattern for one in options.topics.split(",") if (pattern := one.strip())]
    names = [name for name in origin.topic_names() if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
    found: dict[str, Head] = {}
    for at in range(0, len(names), 1000):
        found.update(origin.heads(dict.fromkeys(names[at : at + 1000], 1)))
    heads = {name: head for name, head in found.items() if head.durable_seq is not None}
    refused = {
        name: f"topic {name!r} is ephemeral: it has no history" if name in found else f"topic {name!r} does not exist"
        for name in patterns
        if name not in heads and _GLOB.search(name) is None
    }
    if not heads:
        told = "; ".join(refused.values()) or "no topic matches, apart from ephemeral ones, which have no history"
        raise InvalidRequest(f"--topics {options.topics!r}: {told}")
    return heads, refused


def head_of(origin: Origin, name: str) -> Head:
    """Where the topic stands now. What was known at the beginning of a round is older than what others have exported
    since, and a table must not seem to be ahead of its topic for that."""
    head = origin.heads({name: 1}).get(name)
    if head is None or head.durable_seq is None:
        raise NotFound(f"topic {name!r} was dropped in the meantime", topic=name)
    return head


def folder_of(text: str) -> str:
    """The folder that `--table` means; InvalidRequest if it is none."""
    path = without_scheme(text)
    if "://" in path:
        raise InvalidRequest(
            f"--table {text!r}: tables are written to folders, not to object stores; name a folder that this machine "
            "and every worker see, and copy the tables from there"
        )
    folder = os.path.abspath(path)
    if _MISREAD.search(folder):
        raise InvalidRequest(
            f"--table {text!r}: Delta cannot keep a table below {folder!r}; a backslash, a line feed and the like, or "
            "% before two hexadecimal digits mean something else to it: name another folder"
        )
    return folder


def check_folder(root: str) -> None:
    """InvalidRequest if nothing can be written there."""
    try:
        os.makedirs(root, exist_ok=True)
        # A name of its own: two exporters, in one process or on two machines, must not take each other's away.
        probe = os.path.join(root, f".topics-probe-{uuid.uuid4().hex}")
        OsFs().open(probe, write=True, create=True).close()
        os.unlink(probe)
    except OSError as error:
        raise InvalidRequest(
            f"the folder {root} cannot be written ({error.strerror}): name another with --table"
        ) from None


def run_round(
    spark: Callable[[], SparkSession], options: PipelineOptions, doing: Doing | None = None
) -> Iterator[Exported]:
    """One round over all chosen topics. A topic's own trouble is told and does not stop the others."""
    check_folder(options.table)
    origin = options.origin()
    heads, refused = chosen(options, origin)
    for name, why in refused.items():
        yield Exported(name, 0, 0, error=why)
    yield from _each(options, heads, Exporter(spark, options, origin, doing).export)


def rebuild(
    spark: Callable[[], SparkSession], options: PipelineOptions, doing: Doing | None = None
) -> Iterator[Exported]:
    """Write every chosen table anew; the old one goes when its successor is complete. A topic's own trouble is told and
    does not stop the others."""
    check_folder(options.table)
    origin = options.origin()
    heads, refused = chosen(options, origin)
    if refused:
        raise InvalidRequest("; ".join(refused.values()))
    yield from _each(options, heads, Exporter(spark, options, origin, doing).rebuild)


def _each(options: PipelineOptions, names: Iterable[str], do: Callable[[str], Exported]) -> Iterator[Exported]:
    gone: str | None = None
    for name in sorted(names):
        began = time.monotonic()
        if gone is not None:  # to wait for the server again, for each of many topics, would take hours
            yield Exported(name, 0, 0, error=gone)
            continue
        try:
            done = do(name)
        except Unreachable as error:
            gone = f"{error.message}: the next round asks again, --url names another server"
            done = Exported(name, 0, 0, seconds=time.monotonic() - began, error=gone)
        except TopicsError as error:
            done = Exported(name, 0, 0, seconds=time.monotonic() - began, error=error.message)
        yield _with_leftovers(options, done)


class Marks:
    """The marks of the tables, as the server knows them."""

    def __init__(self, options: PipelineOptions, origin: Origin) -> None:
        self._must = bool(options.hold)
        self._progress = (
            Progress(lambda: origin.client, GROUP, options.hold) if isinstance(origin, ServerOrigin) else None
        )

    def tell(self, name: str, head: Head, mark: int, committed: bool = False) -> str | None:
        """What to note, where it cannot be told: an exporter whose key may only read exports all the same, unless it
        was asked to hold; and what is in the table by now is there."""
        if self._progress is None:
            return None
        try:
            self._progress.tell(name, head.id, mark)
        except TopicsError as error:
            if self._must and not committed:
                raise
            return f"the server does not know the mark: {error.message}"
        return None


@dataclass(frozen=True, slots=True)
class Held:
    """What a table holds: every record below `next_seq` but the noted gaps, and what its topic had deleted."""

    folder: str
    next_seq: int
    gaps: list[tuple[int, int, str]]

    def check(self, losses: Iterable[tuple[int, int, str]]) -> None:
        """RecordsLost if the topic has lost some of it: nothing could bring that back."""
        noted = [(low, high) for low, high, _ in self.gaps]
        for first, last, reason in losses:
            for low, high in without(first, min(last + 1, self.next_seq), noted):
                raise RecordsLost(
                    f"the table {self.folder} holds records {low} to {high - 1}, which its topic has lost since "
                    f"({reason}): to write it anew would lose them too; --drop-lost does it all the same"
                )


class Exporter:
    """What the topics of a round have in common: the session, the options, where topics are read and who is told."""

    def __init__(
        self, spark: Callable[[], SparkSession], options: PipelineOptions, origin: Origin, doing: Doing | None = None
    ) -> None:
        self._spark = spark
        self._options = options
        self._origin = origin
        self._marks = Marks(options, origin)
        self._doing = doing or Doing()

    def export(self, name: str) -> Exported:
        """What the topic's table does not have yet."""
        options = self._options
        history, head = self._loaded(name)
        try:
            mark = history.mark(head)
        except Conflict:
            keep = options.recreated == "new"
            if options.recreated == "fail" or history.owner[1] != name:
                raise
            if not keep and history.is_of_another_store(head):  # a wrong --url must not cost all that the table has
                raise
            return self._write_anew(history, head, keep=keep)
        if history.table is not None:
            history.check_columns(options.shreds)
        return self._export(history, head, mark)

    def rebuild(self, name: str) -> Exported:
        """The topic's table anew, at least as far as it goes now."""
        drop_lost = self._options.drop_lost
        history, head = self._loaded(name)
        if history.table is None:
            return self._export(history, head, 1)
        try:
            least = history.mark(head)
        except Conflict:  # the table of another instance, of which the topic has nothing
            if not drop_lost or history.owner[1] != name:
                raise
            least = 1
        held = None if drop_lost else Held(history.folder, least, history.gaps())
        if held is not None and least > 1:
            plan = self._origin.plan(name, head.topic_id, 1, least)
            held.check((loss.gap_from, loss.gap_to, str(loss.reason)) for loss in plan.losses)
        return self._write_anew(history, head, least, held)

    def _loaded(self, name: str) -> tuple[History, Head]:
        """The table, and where its topic stands; Conflict where another table of the topic is put aside. Both are asked
        for after the table is loaded: who puts one aside leaves none, and what is in a table was in its topic."""
        history = History.load(self._options.table, name)
        aside = put_aside(history.folder, name)
        if aside is not None:
            raise Conflict(aside)
        return history, head_of(self._origin, name)

    def _write_anew(
        self, history: History, head: Head, least: int = 1, held: Held | None = None, keep: bool = False
    ) -> Exported:
        """A table from the first record on, at least up to `least`, in place of the one that is there; that one goes
        when its successor is complete, unless it is to be kept aside. What is `held` must be in the successor, too."""
        aside = Aside.put(history)
        try:
            done = self._commit(history, head, 1, least, held)
        except BaseException:
            aside.back(history.made)
            raise
        # Its successor is complete from here on, whatever comes.
        note = None
        try:
            if keep:
                note = f"the table before it is {aside.keep()}"
            else:
                aside.drop()
        except TopicsError as error:
            note = error.message
        return self._end(history, head, done, note)

    def _export(self, history: History, head: Head, mark: int) -> Exported:
        """What lies behind the mark."""
        return self._end(history, head, self._commit(history, head, mark))

    def _commit(self, history: History, head: Head, mark: int, least: int = 0, held: Held | None = None) -> Exported:
        """With `least` a table is made in any case, and goes at least that far. What is `held` must be in it, or
        nothing is committed: the server would let go of what only the new table has."""
        began = time.monotonic()
        options, name = self._options, history.topic
        history.sync()  # whoever committed its mark may have died before it was durable
        note = self._marks.tell(name, head, mark)
        spans, losses, end = _plan(options, self._origin, name, head, mark, least)
        _judge(options, losses)
        if end <= mark and not least:
            return Exported(name, mark, mark, seconds=time.monotonic() - began, lag=head.head_seq + 1 - mark, note=note)
        waited = time.monotonic()
        session = self._spark() if spans else None
        began += time.monotonic() - waited  # to start Spark is not to export
        if history.table is None:
            history.create(head, options.shreds)
        writer = Writer(history.folder, self._origin, options.shreds, options.report_corrupt)
        try:
            with self._doing.writing(name, sum(span.count for span in spans), history.folder):
                written = write_files(session, writer, spans)
            losses = joined_losses(losses + [loss for one in written for loss in one.losses])
            _judge(options, losses)
            gaps = tuple((loss.gap_from, loss.gap_to, str(loss.reason)) for loss in losses)
            if held is not None:
                held.check(gaps)  # rot, and what was lost since, is found by reading alone
            history.commit(head, end, written, losses)
        except BaseException:
            discard(history.folder, writer.mark)  # else rounds that fail for a day would fill the disk
            raise
        return Exported(
            name,
            mark,
            end,
            rows=sum(one.rows for one in written),
            files=sum(bool(one.path) for one in written),
            bytes=sum(one.size for one in written),
            seconds=time.monotonic() - began,
            lag=head.head_seq + 1 - end,
            gaps=gaps,
            note=note,
        )

    def _end(self, history: History, head: Head, done: Exported, note: str | None = None) -> Exported:
        """What follows a commit and cannot undo it."""
        if history.table is None or (done.end_seq == done.start_seq and not history.made):
            return done
        began = time.monotonic()
        told, joined = self._marks.tell(done.topic, head, done.end_seq, committed=True), 0
        try:
            joined = history.tidy() if self._options.compact else 0
        except StorageError as error:
            note = _joined_notes(note, error.message)
        seconds = done.seconds + time.monotonic() - began
        return replace(done, joined=joined, seconds=seconds, note=_joined_notes(told, note))


def _judge(options: PipelineOptions, losses: list[Loss]) -> None:
    """RecordsLost if something is lost that must not be."""
    for lost in losses if options.gap_fails else ():
        if lost.reason != "corrupt" or not options.report_corrupt:
            raise RecordsLost(
                f"records {lost.gap_from} to {lost.gap_to} of topic {lost.topic!r} are lost ({lost.reason}) before "
                "they were exported: run without --on-gap fail to note it in the table and go on"
            )


def _with_leftovers(options: PipelineOptions, done: Exported) -> Exported:
    left = leftovers(os.path.join(options.table, done.topic), done.topic)
    if left is None or left == done.error:
        return done
    return replace(done, note=_joined_notes(done.note, left))


def _joined_notes(*notes: str | None) -> str | None:
    return "; ".join(filter(None, notes)) or None


def _plan(
    options: PipelineOptions, origin: Origin, name: str, head: Head, mark: int, least: int = 0
) -> tuple[list[Span], list[Loss], int]:
    """Contiguous from the mark on: what is sealed, or with `tail` all that is durable; up to `least` in any case."""
    assert head.durable_seq is not None
    limit = head.durable_seq + 1
    if mark >= limit:
        return [], [], mark
    plan = origin.plan(name, head.topic_id, mark, limit)
    spans = sorted(plan.spans, key=lambda span: span.start_seq)
    end = limit
    if not options.tail:
        unsealed = (s for s in spans if not isinstance(s.place, SegmentPlace) or not s.place.sealed)
        end = max(min((span.start_seq for span in unsealed), default=limit), min(least, limit))
    spans = [span.cut(span.start_seq, min(span.end_seq, end)) for span in spans if span.start_seq < end]
    losses = [replace(loss, gap_to=min(loss.gap_to, end - 1)) for loss in plan.losses if loss.gap_from < end]
    return spans, losses, end


def read_status(options: PipelineOptions) -> list[Status]:
    """A topic's own trouble is told and does not stop the others."""
    origin = options.origin()
    heads, refused = chosen(options, origin)
    found = [_problem(options, name, 0, why) for name, why in refused.items()]
    for name, head in sorted(heads.items()):
        try:
            history = History.load(options.table, name)
            found.append(_status(history, head_of(origin, name)))
        except TopicsError as error:
            found.append(_problem(options, name, head.head_seq, error.message))
    return found


def _status(history: History, head: Head) -> Status:
    problem, mark = leftovers(history.folder, history.topic), 1
    try:
        mark = history.mark(head)
    except Conflict as error:
        problem = _joined_notes(error.message, problem)
    rows, files, size = history.numbers()
    lag = head.head_seq + 1 - mark
    gaps = tuple(history.gaps())
    exists = history.table is not None
    return Status(history.topic, history.folder, exists, rows, files, size, mark, head.head_seq, lag, gaps, problem)


def _problem(options: PipelineOptions, name: str, head_seq: int, why: str) -> Status:
    """Nothing is known of the table."""
    return Status(name, os.path.join(options.table, name), False, 0, 0, 0, 1, head_seq, head_seq, (), why)
