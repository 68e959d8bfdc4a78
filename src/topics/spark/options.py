"""What a reader was asked for: the options of `spark.read` and `spark.readStream`, checked where the query is made.

Kafka's names stand for ours where the meaning is the same. An unknown option is an error that lists the known ones,
because a misspelt filter would otherwise read everything.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from topics.client.url import Place
from topics.model.config import check_topic_name
from topics.model.errors import InvalidRequest
from topics.spark.words import OPTIONS, Words

GapPolicy = Literal["fail", "emit", "skip"]

NAMES: Final = (
    "path", "url", "token", "topic", "subscribe", "subscribePattern", "startSeq", "endSeq", "startTs", "endTs",
    "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "tag", "node", "key",
    "maxRecordsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "gapPolicy",
    "failOnDataLoss", "onCorrupt", "onBadJson", "verify", "allowLive", "compat", "group", "hold", "timeout",
)  # fmt: skip

SAME: Final = {
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
}
"""Kafka's name: ours."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_SEQ_MAX: Final = (1 << 63) - 1
TIMEOUT_MS: Final = 30_000
"""For one call to the server with all its repetitions. One that is not there is asked ten times, in some ten seconds:
long enough for it to come back from a restart."""
DELAY_MS: Final = 900_000
"""For which a stream waits for enough records, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: `seq` with its number, `ts` in ms since 1970, `earliest` or `latest`."""

    kind: Literal["seq", "ts", "earliest", "latest"]
    value: int = 0


EARLIEST: Final = Bound("earliest")
LATEST: Final = Bound("latest")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; None = any."""

    tag: str | None = None
    """Exact, or a prefix written `p*`."""
    node: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    path: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    topics: tuple[str, ...] = ()
    """Empty: those whose name matches `pattern`."""
    pattern: str | None = None
    start: Bound = EARLIEST
    end: Bound = LATEST
    starts: Mapping[str, Bound] = field(default_factory=dict)
    """For single topics, before `start`."""
    ends: Mapping[str, Bound] = field(default_factory=dict)
    filter: Filter = Filter()
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int | None = None
    """None: `DELAY_MS`."""
    min_partitions: int = 0
    max_partition_records: int | None = None
    gap_policy: GapPolicy = "fail"
    report_corrupt: bool = False
    fail_bad_json: bool = False
    verify: bool = True
    allow_live: bool = False
    kafka: bool = False
    group: str | None = None
    """A stream tells its progress as this group."""
    hold: bool | None = None
    """Whether retention waits for the group; None: as it is, and a new one has no guard."""
    timeout_ms: int = TIMEOUT_MS
    words: Words = OPTIONS
    """In which an error advises."""

    @property
    def shows_gaps(self) -> bool:
        """Whether rows of kind `gap` may come, so that the columns for them are there unless a schema is given."""
        return self.gap_policy == "emit" or self.report_corrupt

    def start_of(self, topic: str) -> Bound:
        return self.starts.get(topic, self.start)

    def end_of(self, topic: str) -> Bound:
        return self.ends.get(topic, self.end)


def parse_options(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Options:
    """The options, or InvalidRequest that names the one at fault and the remedy."""
    asked = _named(given)
    path, url = asked.get("path"), asked.get("url")
    if (path is None) == (url is None):
        told = "give either option path (a data directory at rest) or option url (a running server, %s)"
        kept = (
            "; a table that Spark's catalog kept (saveAsTable, writeTo) has no options: DROP TABLE, and read the topic"
        )
        raise InvalidRequest(told % "http://127.0.0.1:4000" + (kept if path is None else ""))
    if path is not None:
        path = without_scheme(path)
        if "://" in path:
            raise InvalidRequest(f"option path is {path!r}: only directories of this machine are read; or give url")
    token = (asked.get("token") or environ.get("TOPICS_TOKEN") or None) if url is not None else None
    if url is not None:
        Place.parse(url, token)
    topics, pattern = _topics(asked)
    for name in ("tag", "node", "key"):
        if asked.get(name) == "":
            raise InvalidRequest(f"option {name} is empty: leave it out to read everything")
    starts, start = _bounds(asked, "startSeq", "startTs", "startingOffsets", "startingOffsetsByTimestamp", EARLIEST)
    ends, end = _bounds(asked, "endSeq", "endTs", "endingOffsets", "endingOffsetsByTimestamp", LATEST)
    for name in (*starts, *ends):
        if topics and name not in topics:
            raise InvalidRequest(f"a range is given for topic {name!r}, which is not read; topics: {', '.join(topics)}")
    if start.kind == end.kind == "ts" and start.value > end.value:
        raise InvalidRequest(f"the range ends at {asked['endTs']}, before it begins at {asked['startTs']}")
    for bound in (end, *ends.values()):
        if bound.kind == "earliest":
            raise InvalidRequest("endingOffsets cannot be earliest: nothing would be read; leave it out for the head")
    return Options(
        path=path,
        url=url,
        token=token,
        topics=topics,
        pattern=pattern,
        start=start,
        end=end,
        starts=starts,
        ends=ends,
        filter=Filter(asked.get("tag"), asked.get("node"), asked.get("key")),
        max_records=_number(asked, "maxRecordsPerTrigger", 1),
        max_bytes=_number(asked, "maxBytesPerTrigger", 1),
        min_records=_number(asked, "minRecordsPerTrigger", 1),
        max_delay_ms=duration(asked, "maxTriggerDelay", DELAY_MS) if "maxTriggerDelay" in asked else None,
        min_partitions=_number(asked, "minPartitions", 1) or 0,
        max_partition_records=_number(asked, "maxRecordsPerPartition", 1),
        gap_policy=_gap_policy(asked),
        report_corrupt=_choice(asked, "onCorrupt", ("fail", "report")) == "report",
        fail_bad_json=_choice(asked, "onBadJson", ("null", "fail")) == "fail",
        verify=_flag(asked, "verify", True),
        allow_live=_allow_live(asked),
        kafka=_choice(asked, "compat", ("topics", "kafka")) == "kafka",
        group=_group(asked),
        hold=_flag(asked, "hold", False) if "hold" in asked else None,
        timeout_ms=duration(asked, "timeout", TIMEOUT_MS, least=1),
    )


def without_scheme(path: str) -> str:
    """Without the scheme, which Spark writes with one slash, others with three."""
    return re.sub(r"^file:(//)?(?=/)", "", path)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """By our names; Spark hands options over in lower case."""
    known = {name.lower(): name for name in NAMES}
    asked: dict[str, str] = {}
    for given_name, value in given.items():
        name = known.get(given_name.lower())
        if name is None and given_name.lower() == "provider":  # which the catalog adds to what the caller gave
            raise InvalidRequest(
                "Spark's catalog cannot keep a topic as a table: CREATE TEMPORARY VIEW orders USING topics "
                "OPTIONS (url 'http://127.0.0.1:4000', topic 'orders')"
            )
        if name is None:
            raise InvalidRequest(f"unknown option {given_name!r}; known: {', '.join(NAMES)}")
        ours = SAME.get(name, name)
        if ours in asked:
            raise InvalidRequest(f"option {ours} is given twice, also as {name}: give one")
        asked[ours] = value
    return asked


def _topics(asked: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("topic", "subscribe", "subscribePattern") if name in asked]
    if len(given) != 1:
        more = f", not {' and '.join(given)}" if given else ""
        raise InvalidRequest(f"give one of topic, subscribe (a,b,c) or subscribePattern (a regular expression){more}")
    value = asked[given[0]]
    if given[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidRequest(f"option subscribePattern {value!r} is not a regular expression: {error}") from None
        return (), value
    names = (value,) if given[0] == "topic" else tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise InvalidRequest("option subscribe names no topic")
    for name in names:
        check_topic_name(name)
    return tuple(dict.fromkeys(names)), None


def _group(asked: Mapping[str, str]) -> str | None:
    name = asked.get("group")
    if name is None:
        if "hold" in asked:
            raise InvalidRequest("option hold says whether retention waits for the group: name one with option group")
        return None
    check_topic_name(name, "option group")
    if "url" not in asked:
        raise InvalidRequest(
            "option group is for a running server (option url): a directory at rest holds nothing back"
        )
    return name


def _bounds(
    asked: Mapping[str, str], seq: str, ts: str, offsets: str, times: str, default: Bound
) -> tuple[dict[str, Bound], Bound]:
    """(by topic, for the others)."""
    given = [name for name in (seq, ts, offsets, times) if name in asked]
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} say the same thing: give one")
    if not given:
        return {}, default
    name, value = given[0], asked[given[0]]
    if name == seq:
        return {}, Bound("seq", _whole(name, value, 0))
    if name == ts:
        return {}, Bound("ts", _time(name, value))
    if name == times:
        return {
            topic: Bound("ts", _time(name, _single(name, when))) for topic, when in _map(name, value).items()
        }, default
    if value.strip().startswith("{"):
        return {topic: _offset(name, _single(name, where)) for topic, where in _map(name, value).items()}, default
    return {}, _offset(name, value)


def _offset(name: str, value: Any) -> Bound:
    text = str(value).strip()
    if text in ("earliest", "-2"):
        return EARLIEST
    if text in ("latest", "-1"):
        return LATEST
    return Bound("seq", _whole(name, text, 0))


def _single(name: str, value: Any) -> Any:
    """A topic has one partition, so Kafka's map of partitions has one entry, 0."""
    if not isinstance(value, dict):
        return value
    if list(value) != ["0"]:
        raise InvalidRequest(f'option {name} names partitions {sorted(value)}: a topic has one, written {{"0": seq}}')
    return value["0"]


def _map(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f'option {name} is not JSON ({error}): write {{"orders": 17}}') from None
    if not isinstance(found, dict):
        raise InvalidRequest(f'option {name} is not a JSON object: write {{"orders": 17}}')
    return found


def _whole(name: str, value: str, least: int) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= _SEQ_MAX:
        raise InvalidRequest(f"option {name} is {value!r}: give a whole number of at least {least}")
    return int(text)


def _number(asked: Mapping[str, str], name: str, least: int) -> int | None:
    return _whole(name, asked[name], least) if name in asked else None


def _time(name: str, value: Any) -> int:
    text = str(value).strip()
    if text.isascii() and text.isdigit():
        return _whole(name, text, 0)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"option {name} is {value!r}: give ms since 1970, or a time such as 2025-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(int(moment.timestamp() * 1000), 0)


def duration(asked: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    """In ms."""
    if name not in asked:
        return default
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h)\s*", asked[name], re.ASCII)
    if match is None or (found := int(match.group(1)) * _UNITS[match.group(2)]) < least:
        raise InvalidRequest(f"option {name} is {asked[name]!r}: write it as 500ms, 30s, 15m or 1h")
    return found


def _choice(asked: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = asked.get(name, allowed[0]).lower()
    if value not in allowed:
        raise InvalidRequest(f"option {name} is {asked[name]!r}: give {' or '.join(allowed)}")
    return value


def _flag(asked: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(asked, name, ("true", "false") if default else ("false", "true")) == "true"


def _allow_live(asked: Mapping[str, str]) -> bool:
    allowed = _flag(asked, "allowLive", False)
    if allowed and "path" not in asked:
        raise InvalidRequest(
            "option allowLive is for a directory (option path), of which it reads the sealed segments beside a running "
            "store: leave it out, for a server (option url) gives every record"
        )
    return allowed


def _gap_policy(asked: Mapping[str, str]) -> GapPolicy:
    if "failOnDataLoss" in asked:
        if "gapPolicy" in asked:
            raise InvalidRequest("gapPolicy and failOnDataLoss say the same thing: give one")
        return "fail" if _flag(asked, "failOnDataLoss", True) else "skip"
    policy = _choice(asked, "gapPolicy", ("fail", "emit", "skip"))
    return "emit" if policy == "emit" else "skip" if policy == "skip" else "fail"
