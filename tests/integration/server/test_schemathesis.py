"""Requests made from `/openapi.json`, good and bad ones: no answer is a 5xx, and every answer is as described."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import APIOperation

from tests.contract.http.client import Api
from tests.contract.http.live import Http1, ServerProcess
from topics.api.openapi import document
from topics.api.routes import ROUTES

EXAMPLES = 20
WAIT_MS = 20
"""What a long poll may wait; every request would wait half a minute otherwise."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {"topic": "seen", "router": "seen-router", "first_seq": "1", "part": "data", "key": "k"}


def tuples_as_lists(part: Any) -> Any:
    """Schemathesis takes `prefixItems` for the `items` of an older draft, and then refuses them."""
    if isinstance(part, list):
        return [tuples_as_lists(item) for item in part]
    if not isinstance(part, dict):
        return part
    whole = {name: tuples_as_lists(value) for name, value in part.items()}
    if "prefixItems" in whole:
        whole["items"] = whole.pop("prefixItems")[0]
    return whole


Operation = APIOperation[Any, Any, Any, Any]
SCHEMA = schemathesis.openapi.from_dict(tuples_as_lists(document("test")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("described"), TOPICS_SEGMENT_MAX_EVENTS="5")
    server.shared = True
    yield server
    status, _, complaints = server.stop()
    assert (status, complaints) == (0, "")


@pytest.fixture
def url(server: ServerProcess) -> str:
    """Of a server that has a topic with records in files and in memory, and a router."""
    wire = Http1(server.host, server.port)
    api = Api(wire)
    for number in range(12):
        api.append("seen", {"data": number, "tag": "t", "node": "n", "key": "k", "meta": {"m": 1}})
        if number == 8:
            api.call("POST", "/v0/admin/checkpoint")
    api.call("PUT", "/v0/routers/seen-router", {"source": "seen", "dest": "seen-copy"})
    wire.close()
    return f"http://{server.host}:{server.port}"


def operations() -> list[Operation]:
    results: Any = SCHEMA.get_all_operations()
    return [result.ok() for result in results]


def test_description_of_the_live_server_is_the_one_tested(server: ServerProcess) -> None:
    wire = Http1(server.host, server.port)
    described = json.loads(Api(wire).call("GET", "/openapi.json").body)
    wire.close()
    assert described["paths"] == json.loads(json.dumps(document("test")))["paths"]
    assert len(operations()) == len(ROUTES)


def can_be_wrong(operation: Operation) -> bool:
    """Queries and bodies can; any text is a name."""
    raw = operation.definition.raw
    return "requestBody" in raw or any(parameter["in"] == "query" for parameter in raw["parameters"])


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_answers_to_good_requests_are_as_described(url: str, operation: Operation) -> None:
    send_some(url, operation, GenerationMode.POSITIVE)


@pytest.mark.parametrize(
    "operation", [one for one in operations() if can_be_wrong(one)], ids=lambda operation: operation.label
)
def test_answers_to_bad_requests_are_as_described(url: str, operation: Operation) -> None:
    send_some(url, operation, GenerationMode.NEGATIVE)


def send_some(url: str, operation: Operation, mode: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        body = case.body
        wait_ms = body.get("wait_ms") if isinstance(body, dict) else None
        if isinstance(wait_ms, int) and wait_ms > WAIT_MS:
            body["wait_ms"] = WAIT_MS
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=120)
        if case.path_parameters:
            # Random names are hardly ever there: the same request goes to what is.
            case.path_parameters.update({name: KNOWN[name] for name in case.path_parameters if name in KNOWN})
            case.call_and_validate(base_url=url, checks=CHECKS, timeout=120)

    run()
