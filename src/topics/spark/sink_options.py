"""What a writer was asked for: the options of `df.write` and `df.writeStream`, checked where the query is made."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from topics.client.url import Place
from topics.model.config import check_topic_name
from topics.model.errors import InvalidRequest
from topics.spark.options import TIMEOUT_MS, duration

NAMES: Final = ("url", "token", "topic", "dataFormat", "txn", "txnAppId", "txnVersion", "create", "timeout")
_SPARKS: Final = "checkpointlocation"
"""Spark's own, which comes along."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_VERSION_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SinkOptions:
    url: str
    token: str | None = field(default=None, repr=False)
    topic: str | None = None
    """Where rows go that name no topic of their own."""
    data_format: Literal["json", "string"] = "json"
    """`json`: a string column holds JSON text. `string`: it holds any text, which becomes a JSON string."""
    txn: str | None = None
    app: str | None = None
    version: int | None = None
    create: bool = True
    """An absent topic is made."""
    timeout_ms: int = TIMEOUT_MS


def parse_sink_options(given: Mapping[str, str], stream: bool, environ: Mapping[str, str] = os.environ) -> SinkOptions:
    """The options, or InvalidRequest that names the one at fault and the remedy."""
    asked = _named(given)
    if "url" not in asked:
        raise InvalidRequest("give option url: the server to write to, such as http://127.0.0.1:4000")
    token = asked.get("token") or environ.get("TOPICS_TOKEN") or None
    Place.parse(asked["url"], token)
    topic = asked.get("topic")
    if topic is not None:
        check_topic_name(topic)
    data_format = asked.get("dataFormat", "json")
    if data_format not in ("json", "string"):
        raise InvalidRequest(f"option dataFormat is {data_format!r}; it may be json or string")
    txn, app, version = asked.get("txn"), asked.get("txnAppId"), asked.get("txnVersion")
    if stream and (txn is not None or version is not None):
        given_name = "txn" if txn is not None else "txnVersion"
        raise InvalidRequest(
            f"option {given_name} is for batches: a stream has one transaction per micro-batch, <txnAppId>@<batch>"
        )
    if txn is not None and (app is not None or version is not None):
        raise InvalidRequest("give either option txn or options txnAppId and txnVersion, not both")
    if not stream and (app is None) != (version is None):
        raise InvalidRequest("a batch needs txnAppId and txnVersion together: one names the job, the other the run")
    for name, value in (("txn", txn), ("txnAppId", app)):
        if value is not None and _NAME.fullmatch(value) is None:
            raise InvalidRequest(f"option {name} is {value!r}; it may hold letters, digits and . _ : - (at most 200)")
    return SinkOptions(
        url=asked["url"],
        token=token,
        topic=topic,
        data_format="json" if data_format == "json" else "string",
        txn=txn,
        app=app,
        version=None if version is None else _version(version),
        create=_flag(asked.get("create", "true")),
        timeout_ms=duration(asked, "timeout", TIMEOUT_MS, least=1),
    )


def _named(given: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in NAMES}
    asked: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in known:
            asked[known[lower]] = str(value)
        elif lower == "path":  # also the argument of save() and start()
            raise InvalidRequest(
                f"option path is {value!r}, and a topic is written through its server: leave the argument of save() or "
                "start() out; option url names the server, option topic the topic"
            )
        elif lower != _SPARKS:
            raise InvalidRequest(f"unknown option {name!r}; a topics sink knows {', '.join(NAMES)}")
    return asked


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _VERSION_MAX):
        raise InvalidRequest(f"option txnVersion is {text!r}; it is a number that grows with every run")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"option create is {text!r}; it may be true or false")
    return text.lower() == "true"
