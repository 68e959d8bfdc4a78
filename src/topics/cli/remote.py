"""Small commands over the client: list, create, append, read, look at, delete from and drop topics of a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from topics.cli.exits import WrongUsage
from topics.cli.output import Output
from topics.client import Client, RetryPolicy
from topics.client.url import DEFAULT_URL
from topics.model.config import FIELDS
from topics.model.errors import InvalidRequest
from topics.model.payload import parse_json
from topics.model.record import Gap, Record

BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 1024 * 1024
"""What one append takes from the input of `topics append`."""
ATTEMPTS_MAX: Final = 10
"""Whoever types a wrong address hears of it in some ten seconds; only a watch waits as long as it may."""


@Parameter(name="*")
@dataclass(frozen=True)
class Server:
    url: Annotated[str, Parameter(env_var="TOPICS_URL")] = DEFAULT_URL
    """The server. Its key, if it needs one, is taken from the variable TOPICS_TOKEN."""
    timeout: float = 30.0
    """Seconds for one call with all its repetitions."""
    json: Annotated[bool, Parameter(negative=())] = False
    """Print JSON, one object a line."""

    def client(self, attempts_max: int | None = ATTEMPTS_MAX) -> Client:
        if not self.timeout > 0:
            raise WrongUsage(f"--timeout is {self.timeout:g}; it must be above 0 seconds")
        token = os.environ.get("TOPICS_TOKEN") or None
        try:
            return Client(self.url, token=token, retry=RetryPolicy(self.timeout, attempts_max))
        except InvalidRequest as error:
            raise WrongUsage(error.message) from error

    def output(self) -> Output:
        return Output(json=self.json)


LOCAL: Final = Server()


def list_topics(prefix: str | None = None, *, server: Server = LOCAL) -> int:
    """List topics.

    Parameters
    ----------
    prefix
        Only names that begin with this.
    """
    columns = ("topic", "head_seq", "earliest_seq", "count", "bytes", "durable")
    with server.client() as client:
        rows = (msgspec.to_builtins(topic) for topic in client.topics(prefix))
        server.output().rows(columns, rows, "no topics" if prefix is None else f"no topics begin with {prefix}")
    return 0


def create(topic: str, *fields: str, server: Server = LOCAL) -> int:
    """Create a topic, or replace the configuration of one that exists.

    Parameters
    ----------
    topic
        Its name.
    fields
        Configuration as FIELD=VALUE: durability=fsync, cap_records=1000, ttl_ms=60000 …
    """
    config = dict(assigned(field) for field in fields)
    with server.client() as client:
        done = client.create(topic, **config)
    server.output().fields(msgspec.to_builtins(done))
    return 0


def append(
    topic: str,
    *data: str,
    tag: str | None = None,
    node: str | None = None,
    key: str | None = None,
    text: Annotated[bool, Parameter(negative=())] = False,
    records: Annotated[bool, Parameter(negative=())] = False,
    server: Server = LOCAL,
) -> int:
    """Append records. The topic is created if it does not exist.

    Parameters
    ----------
    topic
        Its name.
    data
        A JSON text for each record. Without any, they are read from standard input, one a line.
    tag
        Tag of every record.
    node
        Origin of every record.
    key
        Key of every record.
    text
        The data are plain texts, not JSON.
    records
        Each datum is a whole record: {"data": …, "tag": …}.
    """
    common = {name: value for name, value in (("tag", tag), ("node", node), ("key", key)) if value is not None}
    if text and records:
        raise WrongUsage("--text and --records exclude each other: a record is a JSON object")
    if not data and sys.stdin.isatty():
        raise WrongUsage("nothing to append: give JSON texts, or pipe them in, one a line")
    lines: Iterable[bytes] = (os.fsencode(one) for one in data) if data else _input()
    output = server.output()
    count, first, last = 0, None, None
    try:
        with server.client() as client:
            for batch in _batches(_record(line, common, text, records) for line in lines):
                done = client.append(topic, batch)
                first, last = done.first_seq if first is None else first, done.last_seq
                count += done.count
                output.progress(count, "records")
    except BaseException:
        output.progress_over()
        if count:  # whoever tries again must know where to go on
            output.note(f"{count} records were appended before this, the last one as seq {last}")
        raise
    output.progress_over()
    if not count:
        raise InvalidRequest("nothing to append: the input held no line")
    output.fields({"topic": topic, "count": count, "first_seq": first, "last_seq": last})
    return 0


def read(
    topic: str,
    *,
    from_seq: int = 0,
    limit: int | None = None,
    follow: Annotated[bool, Parameter(negative=(), alias="-f")] = False,
    server: Server = LOCAL,
) -> int:
    """Print records after a seq, and where some were lost.

    Parameters
    ----------
    topic
        Its name.
    from_seq
        The last seq seen; what comes after it is printed.
    limit
        At most this many records.
    follow
        Wait for more at the end, until interrupted.
    """
    output = server.output()
    left = limit
    if left is not None and left < 1:
        raise WrongUsage(f"--limit is {limit}; it must be at least 1")
    with server.client() as client:
        for item in client.read(topic, from_seq, follow=follow, limit=min(left or 1000, 1000)):
            _print(output, item)
            if left is not None and isinstance(item, Record) and (left := left - 1) == 0:
                break
    return 0


def watch(
    topic: str,
    *others: str,
    from_seq: int | None = None,
    limit: int | None = None,
    server: Server = LOCAL,
) -> int:
    """Print records of topics as they are written, until interrupted or every topic was dropped.

    A server that goes away is waited for, as long as --timeout says; nothing that was written meanwhile is passed over.

    Parameters
    ----------
    topic
        Its name.
    others
        Further topics; each line then begins with the name of its topic.
    from_seq
        The last seq seen, in every topic: what lies behind it is printed first. Without it, only what is new.
    limit
        At most this many records.
    """
    output = server.output()
    names = [topic, *others]
    left = limit
    if left is not None and left < 1:
        raise WrongUsage(f"--limit is {limit}; it must be at least 1")
    with server.client(attempts_max=None) as client:
        for name, item in client.watch(dict.fromkeys(names, from_seq)):
            _print(output, item, name if others else "")
            if left is not None and isinstance(item, Record) and (left := left - 1) == 0:
                break
    return 0


def _print(output: Output, item: Record | Gap, topic: str = "") -> None:
    named = {"topic": topic} if topic else {}
    before = f"{topic} " if topic else ""
    if isinstance(item, Gap):
        values = {"gap_from": item.gap_from, "gap_to": item.gap_to, "reason": item.reason}
        text = f"… {item.missed} lost: {item.gap_from} to {item.gap_to}, {item.reason}"
        if item.reason == "recreated" or not item.missed:  # a watch that begins with it does not name the reason
            text = "… recreated: it is another topic than before, and read from its beginning"
        output.line({**named, "tombstone": values}, before + text)
    else:
        output.line({**named, **as_json(item)}, before + as_text(item))


def info(topic: str, *, server: Server = LOCAL) -> int:
    """Show a topic's state and configuration. Its read clocks are left alone.

    Parameters
    ----------
    topic
        Its name.
    """
    with server.client() as client:
        server.output().fields(msgspec.to_builtins(client.info(topic, touch=False)))
    return 0


def delete(topic: str, *, before_seq: int | None = None, tag: str | None = None, server: Server = LOCAL) -> int:
    """Delete records, for good.

    Parameters
    ----------
    topic
        Its name.
    before_seq
        Those below this seq.
    tag
        Those with this tag; `p*` means every tag that begins with p. With --before-seq, those that are both.
    """
    if before_seq is None and tag is None:
        raise WrongUsage("say which records: --before-seq, --tag, or both. `topics drop` removes a whole topic")
    with server.client() as client:
        server.output().fields(msgspec.to_builtins(client.delete(topic, before_seq=before_seq, tag=tag)))
    return 0


def drop(
    topic: str,
    *,
    if_empty: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=())] = False,
    server: Server = LOCAL,
) -> int:
    """Drop a topic with all its records and every router that touches it.

    Parameters
    ----------
    topic
        Its name.
    if_empty
        Only if it holds no record.
    yes
        Do not ask.
    """
    if not yes and not if_empty and not _confirmed(topic):
        raise InvalidRequest(f"topic {topic!r} was not dropped; say --yes to drop it without being asked")
    with server.client() as client:
        server.output().fields(msgspec.to_builtins(client.drop(topic, if_empty=if_empty or None)))
    return 0


COMMANDS: Final[dict[str, tuple[Callable[..., int], str]]] = {
    "topics": (
        list_topics,
        "Examples:\n\n    topics topics\n    topics topics orders. --json\n"
        "    topics topics --url http://127.0.0.1:5000\n",
    ),
    "create": (
        create,
        "Examples:\n\n    topics create orders durability=fsync\n"
        "    topics create events cap_records=100000 ttl_ms=86400000\n    topics create jobs type=queue\n",
    ),
    "append": (
        append,
        "Examples:\n\n    topics append orders '{\"id\": 1}' '{\"id\": 2}' --tag eu\n"
        "    topics append notes --text 'remember the milk'\n    topics append orders < lines.ndjson\n",
    ),
    "read": (
        read,
        "Examples:\n\n    topics read orders\n    topics read orders --from-seq 100 --limit 10 --json\n"
        "    topics read orders --follow\n",
    ),
    "watch": (
        watch,
        "Examples:\n\n    topics watch orders\n    topics watch orders payments --from-seq 0 --json\n",
    ),
    "info": (info, "Examples:\n\n    topics info orders\n    topics info orders --json\n"),
    "delete": (
        delete,
        "Examples:\n\n    topics delete orders --before-seq 1000\n    topics delete orders --tag 'eu.*'\n",
    ),
    "drop": (drop, "Examples:\n\n    topics drop orders --if-empty\n    topics drop orders --yes\n"),
}
"""By name: the command, and examples for its help."""


def assigned(field: str, known: Collection[str] = FIELDS) -> tuple[str, Any]:
    name, equals, value = field.partition("=")
    if not equals or not name:
        raise WrongUsage(f"{field!r} is not FIELD=VALUE, such as durability=fsync")
    if name not in known:
        # The server ignores what it does not know, as the wire asks; somebody who typed it meant something.
        raise WrongUsage(f"unknown config field {name!r}; known: {', '.join(sorted(known))}")
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return name, value


def _input() -> Iterator[bytes]:
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer if line.strip())


def _record(line: bytes, common: dict[str, str], text: bool, records: bool) -> dict[str, Any]:
    if text:
        return {"data": line.decode("utf-8", "replace"), **common}
    try:
        if records:
            return {**common, **msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
        parse_json(line)
    except ValueError as error:
        start = line[:60].decode("utf-8", "replace")
        raise InvalidRequest(f"{start!r} is not JSON ({error}); quote it for the shell, or say --text") from None
    return {"data": line, **common}


def _batches(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record["data"]) if isinstance(record.get("data"), bytes | str) else 256
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def as_json(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = {"$seq": record.seq, "$ts": record.ts}
    for name, value in (("$node", record.node), ("$tag", record.tag), ("$key", record.key)):
        if value is not None:
            values[name] = value
    values["data"] = msgspec.Raw(record.raw)
    if record.meta_raw is not None:
        values["meta"] = msgspec.Raw(record.meta_raw)
    return values


def as_text(record: Record) -> str:
    when = datetime.fromtimestamp(record.ts / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    marks = [
        f"{name}={value}" for name, value in (("tag", record.tag), ("node", record.node), ("key", record.key)) if value
    ]
    return " ".join([str(record.seq), when, *marks, record.raw.decode("utf-8", "replace")])


def _confirmed(topic: str) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(f"Drop topic {topic!r} and all its records? Type its name: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == topic
