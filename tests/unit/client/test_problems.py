"""From the wire's codes to the one tree of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topics.client.problems import BY_CODE, problem
from topics.client.transport import Answer
from topics.model import errors

CONTRACT = {
    "invalid_request": errors.InvalidRequest,
    "batch_too_large": errors.BatchTooLarge,
    "record_too_large": errors.RecordTooLarge,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "topic_not_found": errors.TopicNotFound,
    "router_not_found": errors.RouterNotFound,
    "not_found": errors.NotFound,
    "method_not_allowed": errors.MethodNotAllowed,
    "not_acceptable": errors.NotAcceptable,
    "router_cycle": errors.RouterCycle,
    "topic_exists_incompatible": errors.TopicExists,
    "topic_not_empty": errors.TopicNotEmpty,
    "payload_too_large": errors.PayloadTooLarge,
    "unsupported_media_type": errors.UnsupportedMediaType,
    "topic_full": errors.TopicFull,
    "throttled": errors.Throttled,
    "internal": errors.TopicsError,
    "not_ready": errors.NotReady,
    "shutting_down": errors.ShuttingDown,
    "segment_gone": errors.SegmentGone,
    "recreated": errors.Recreated,
    "generation_changed": errors.GenerationChanged,
    "range_not_satisfiable": errors.RangeNotSatisfiable,
    "host_not_allowed": errors.HostNotAllowed,
    "read_only": errors.ReadOnly,
    "storage_damaged": errors.CorruptFile,
}


def told(status: int, error: Any, **headers: str) -> errors.TopicsError:
    return problem(Answer(status, headers, json.dumps({"error": error}).encode()))


@pytest.mark.parametrize("code", sorted(CONTRACT))
def test_every_code_of_the_contract_has_its_class(code: str) -> None:
    error = told(400, {"code": code, "message": "why", "detail": {"fact": 1}})
    assert type(error) is CONTRACT[code]
    assert (error.code, error.message, str(error), error.fact, error.status) == (code, "why", "why", 1, 400)


def test_every_class_with_a_code_of_its_own_is_found_by_it() -> None:
    def walk(kind: type[errors.TopicsError]) -> None:
        assert BY_CODE[kind.code] is kind or "code" not in vars(kind)
        for child in kind.__subclasses__():
            walk(child)

    walk(errors.TopicsError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (429, errors.Throttled),
        (500, errors.TopicsError),
        (503, errors.Unavailable),
        (504, errors.Unavailable),
        (418, errors.BadAnswer),
    ],
)
def test_unknown_code_falls_to_its_status_and_keeps_its_name(status: int, kind: type[errors.TopicsError]) -> None:
    error = told(status, {"code": "of_tomorrow", "message": "m"})
    assert type(error) is kind
    assert error.code == "of_tomorrow"
    assert kind.code != "of_tomorrow"


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b'{"error":"text"}', b"\xff\xfe", b"[]"])
def test_answer_without_an_error_body_is_judged_by_status(body: bytes) -> None:
    error = problem(Answer(502, {}, body))
    assert type(error) is errors.Unavailable
    assert "502" in str(error)


def test_detail_cannot_hide_the_status_or_the_message() -> None:
    error = told(404, {"code": "not_found", "message": "m", "detail": {"status": 1, "message": "x", "self": 2}})
    assert error.status == 404
    assert error.message == "m"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1.0), ("0", 0.0), ("1.5", 1.5), ("", None), ("-1", None), ("nan", None), ("Wed, 21 Oct 2026", None)],
)
def test_retry_after_is_read_in_seconds_only(text: str, seconds: float | None) -> None:
    error = problem(Answer(429, {"retry-after": text}, b""))
    assert error.facts.get("retry_after_s") == seconds
