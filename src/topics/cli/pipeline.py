"""`topics pipeline`: from topics to history tables, now, again and again, or anew."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.text import Text

from topics.cli.ending import Ending
from topics.cli.exits import WrongUsage
from topics.cli.output import Output, make_console
from topics.client.url import DEFAULT_URL
from topics.model.errors import InvalidRequest, TopicsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.doing import Doing, Writing
    from topics.spark.pipeline import Exported, PipelineOptions, Status

EXAMPLES: Final = """Examples:

    topics pipeline run --once
    topics pipeline run --topics 'orders.*' --table ./history --every 30s --tail
    topics pipeline run --path ./topics-data --table ./history --once
    topics pipeline run --table ./history --shred 'customer.id:bigint'
    topics pipeline status --table ./history --json
    topics pipeline rebuild --topics orders --table ./history
"""

_MB_MIN: Final = 100_000
"""Bytes that are told in MB; fewer would be 0.0 of them."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}

TABLES: Final = "topics-history"
Flag = Annotated[bool, Parameter(negative=())]


def run(
    *,
    table: str = TABLES,
    url: str | None = None,
    path: str | None = None,
    topics: str = "*",
    once: Flag = False,
    every: str = "30s",
    tail: Flag = False,
    shred: str = "",
    on_gap: Literal["note", "fail"] = "note",
    on_corrupt: Literal["fail", "report"] = "fail",
    recreated: Literal["fail", "rebuild", "new"] = "fail",
    hold: bool | None = None,
    master: str | None = None,
    json: Flag = False,
) -> int:
    """Export what topics have sealed since the last time into their history tables.

    Parameters
    ----------
    table
        The folder of the tables; each topic has its own below it.
    url
        The server to read from; left out, the variable TOPICS_URL or loopback. A key is taken from TOPICS_TOKEN.
    path
        A data directory at rest to read from, instead of a server.
    topics
        Which topics: names and globs, with commas between them.
    once
        One round, then end. Safe in cron.
    every
        Pause between the beginnings of two rounds: 30s, 5m, 1h.
    tail
        Export durable records that are not sealed yet, too; more and smaller files.
    shred
        Typed columns taken from the JSON of data: path:type, with commas between them.
    on_gap
        Records lost before they were exported: note them in the table's commit, or fail.
    on_corrupt
        Records that fail their check: fail, or export the rest and note them as lost; rebuild once they are restored.
    recreated
        A topic dropped and made again: fail, rebuild its table, or keep the old one aside and begin a new one.
    hold
        The server's retention waits until records are exported, as far as group export lets it; --no-hold ends that.
    master
        The Spark master; left out, all cores of this machine.
    json
        Print JSON, one object a line.
    """
    pause_s = _pause(every)
    options = _options(
        table, url, path, topics, tail, shred, on_gap, on_corrupt=on_corrupt, recreated=recreated, hold=hold
    )
    _check_master(master)
    output, errors = Output(json=json), make_console(stderr=True)
    from topics.spark.doing import Doing
    from topics.spark.pipeline import run_round

    rounds, doing, ending = 0, Doing(), Ending()
    teller = Teller(output, errors, tail, doing, ending)
    with _session(master, errors, ending) as session:
        while True:
            began = time.monotonic()
            try:
                failed = teller.tell(run_round(session, options, doing))
            except TopicsError as error:
                if once or not rounds:
                    raise
                output.failed(error.code, error.message)  # what was there comes back: the next round asks again
            else:
                rounds += 1
                if once:
                    return int(failed)
            time.sleep(max(pause_s - (time.monotonic() - began), 0))


def status(
    *, table: str = TABLES, url: str | None = None, path: str | None = None, topics: str = "*", json: Flag = False
) -> int:
    """Show how far the history tables are, and what they miss.

    Parameters
    ----------
    table
        The folder of the tables.
    url
        The server the topics are on; left out, the variable TOPICS_URL or loopback.
    path
        A data directory at rest, instead of a server.
    topics
        Which topics: names and globs, with commas between them.
    json
        Print JSON, one object a line.
    """
    from topics.spark.pipeline import read_status

    options = _options(table, url, path, topics)
    found, output = read_status(options), Output(json=json)
    _print_status(output, found)
    if not json and not any(one.exists or one.problem for one in found):
        output.note(f"no tables below {options.table} yet: `topics pipeline run --table …` writes them")
    return int(any(one.problem is not None for one in found))


def _print_status(output: Output, found: list[Status]) -> None:
    """For people the words follow the numbers: in a column of their own nobody could copy a path from them."""
    columns = ("topic", "rows", "files", "size", "next_seq", "head_seq", "lag")
    absent = dict.fromkeys(("rows", "files", "size"))
    rows = (asdict(one) | ({"size": _size(one.bytes)} if one.exists else absent) for one in found)
    output.rows(columns, map(asdict, found) if output.json else rows, "no topics")
    for one in () if output.json else found:
        if one.gaps:
            output.line({}, f"{one.topic}: {_lost(one.gaps)}")
        if one.problem is not None:
            output.line({}, f"{one.topic}: {one.problem}")


def _lost(gaps: Iterable[tuple[int, int, str]]) -> str:
    return "; ".join(f"lost {low}-{high} ({why})" for low, high, why in gaps)


def rebuild(
    *,
    table: str = TABLES,
    url: str | None = None,
    path: str | None = None,
    topics: str,
    tail: Flag = False,
    shred: str = "",
    on_corrupt: Literal["fail", "report"] = "fail",
    drop_lost: Flag = False,
    master: str | None = None,
    json: Flag = False,
) -> int:
    """Write history tables anew from the segments; the old ones go when the new ones are complete.

    Parameters
    ----------
    table
        The folder of the tables.
    url
        The server to read from; left out, the variable TOPICS_URL or loopback. A key is taken from TOPICS_TOKEN.
    path
        A data directory at rest, instead of a server.
    topics
        Which topics: names and globs, with commas between them.
    tail
        Export durable records that are not sealed yet, too.
    shred
        Typed columns taken from the JSON of data, as path:type with commas between them; left out, there are none.
    on_corrupt
        Records that fail their check: fail, or write the rest and note them as lost.
    drop_lost
        Go on where a table holds records that its topic has lost since (a cap, a TTL, rot): they are gone then.
    master
        The Spark master; left out, all cores of this machine.
    json
        Print JSON, one object a line.
    """
    from topics.spark.doing import Doing
    from topics.spark.pipeline import rebuild as rebuild_tables

    options = _options(table, url, path, topics, tail, shred, on_corrupt=on_corrupt, drop_lost=drop_lost)
    _check_master(master)
    errors, doing, ending = make_console(stderr=True), Doing(), Ending()
    teller = Teller(Output(json=json), errors, tail, doing, ending)
    with _session(master, errors, ending) as session:
        return int(teller.tell(rebuild_tables(session, options, doing)))


def _options(
    table: str,
    url: str | None,
    path: str | None,
    topics: str,
    tail: bool = False,
    shred: str = "",
    on_gap: str = "note",
    on_corrupt: str = "fail",
    recreated: Literal["fail", "rebuild", "new"] = "fail",
    hold: bool | None = None,
    drop_lost: bool = False,
) -> PipelineOptions:
    from topics.spark.session import check_spark

    check_spark(lake=True)
    from topics.spark.parts import parse_shreds
    from topics.spark.pipeline import PipelineOptions, folder_of

    if url is not None and path is not None:
        raise WrongUsage("give either --url or --path, not both")
    try:
        folder, shreds = folder_of(table), parse_shreds(shred)
    except InvalidRequest as error:
        raise WrongUsage(error.message) from None
    return PipelineOptions(
        table=folder,
        url=None if path is not None else url or os.environ.get("TOPICS_URL") or DEFAULT_URL,
        path=path,
        token=os.environ.get("TOPICS_TOKEN") or None,
        topics=topics,
        tail=tail,
        shreds=shreds,
        gap_fails=on_gap == "fail",
        report_corrupt=on_corrupt == "report",
        recreated=recreated,
        hold=hold,
        drop_lost=drop_lost,
    )


def _check_master(master: str | None) -> None:
    """InvalidConfig for what Spark would refuse once it is needed, which may be days later."""
    from topics.spark.session import check_master

    if master is not None:
        check_master(master)


@contextmanager
def _session(master: str | None, errors: Console, ending: Ending) -> Iterator[Callable[[], SparkSession]]:
    """Started when the first file has to be written: a round with nothing to do needs none. One that ended by itself is
    forgotten, and another started. Stopped in the end, however that comes: Java would lament in forty lines that Python
    is gone."""
    from topics.spark.session import is_running, stop

    found: list[SparkSession] = []

    def get() -> SparkSession:
        ending.check()
        if found and not is_running(found[0]):
            stop(found.pop())
        if not found:
            from topics.spark import session

            with errors.status("starting Spark"), ending.later():
                found.append(session("topics pipeline", master))
                _hush(found[0])
        return found[0]

    with ending.heard():
        try:
            yield get
        finally:
            for running in found:
                with suppress(Exception) if ending.told is not None else nullcontext():
                    stop(running)


def _hush(spark: SparkSession) -> None:
    """What a task died of we tell in one line; Spark would add its way through Python and Java, some forty of them."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for logger in ("executor.Executor", "scheduler.TaskSetManager", "TaskContextImpl"):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{logger}", log4j.Level.OFF)


class Watched:
    """What a round is at, as a line that rich draws many times a second; it looks again once a second."""

    def __init__(self, doing: Doing, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._doing = doing
        self._monotonic = monotonic
        self._line, self._until = "", 0.0

    def __rich__(self) -> Text:
        now = self._monotonic()
        if now >= self._until:
            self._line, self._until = _doing_line(self._doing.now), now + 1
        return Text(self._line)


def _doing_line(writing: Writing | None) -> str:
    if writing is None:
        return "exporting"
    line = f"exporting {writing.topic}: {writing.records:,} records"
    size, seconds = writing.bytes(), writing.seconds()
    return f"{line}, {_size(size)} written ({size / 1e6 / seconds:.1f} MB/s)" if size and seconds else line


class Teller:
    """Of a round after the other."""

    def __init__(self, output: Output, errors: Console, tail: bool, doing: Doing, ending: Ending) -> None:
        self._output = output
        self._errors = errors
        self._tail = tail
        self._doing = doing
        self._ending = ending
        self._idle: dict[str, str] = {}
        """By topic what was said last, if that was that there is nothing to do."""

    def tell(self, round_of: Iterator[Exported]) -> bool:
        """True if a topic failed."""
        failed = False
        while True:
            with self._errors.status(Watched(self._doing)):
                done = next(round_of, None)
            self._ending.check()  # what failed for want of the Java that was ended is not worth a word
            if done is None:
                return failed
            failed = failed or done.error is not None
            self._tell(done)

    def _tell(self, done: Exported) -> None:
        """For people once, and not every thirty seconds, that there is nothing new."""
        line = _line(done, self._tail)
        idle = done.error is None and done.end_seq == done.start_seq
        if self._output.json or not idle or self._idle.get(done.topic) != line:
            self._output.line(_values(done), line)
        self._idle[done.topic] = line if idle else ""


def _values(done: Exported) -> dict[str, Any]:
    return {**asdict(done), "seconds": round(done.seconds, 3), "mb_per_s": round(_mb_per_s(done), 1)}


def _mb_per_s(done: Exported) -> float:
    """Of Parquet."""
    return done.bytes / 1e6 / done.seconds if done.seconds else 0.0


def _line(done: Exported, tail: bool) -> str:
    note = f"; {done.note}" if done.note is not None else ""
    if done.error is not None:
        return f"{done.topic}: failed: {done.error}{note}"
    if done.end_seq == done.start_seq:
        why = "" if tail or not done.lag else ", in a segment that is not sealed yet (--tail exports them, too)"
        return f"{done.topic}: nothing new, {_records(done.lag)} behind{why}{note}"
    rate = done.rows / done.seconds if done.seconds else 0.0
    files = "1 file" if done.files == 1 else f"{done.files} files"
    speed = f" ({_mb_per_s(done):.1f} MB/s)" if done.bytes >= _MB_MIN else ""
    text = (
        f"{done.topic}: {_records(done.rows)} to seq {done.end_seq - 1:,} in {done.seconds:.1f} s "
        f"({rate:,.0f}/s), {_size(done.bytes)} in {files}{speed}, {done.lag:,} behind"
    )
    text += f"; {_lost(done.gaps)}" if done.gaps else ""
    return text + (f"; {done.joined} files fewer" if done.joined else "") + note


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= _MB_MIN else f"{count / 1e3:,.1f} kB"


def _pause(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smh])", text.strip())
    if match is None or not int(match.group(1)):
        raise WrongUsage(f"--every is {text!r}: write it as 30s, 5m or 1h")
    return int(match.group(1)) * _UNITS[match.group(2)]


def make_app() -> App:
    app = App(
        name="pipeline",
        help="Turn the history of topics into Delta tables: run, status, rebuild.",
        help_format="plaintext",
        help_epilogue=EXAMPLES,
    )
    for command in (run, status, rebuild):
        app.command(command)
    return app
