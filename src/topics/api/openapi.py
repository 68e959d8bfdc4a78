"""The contract as OpenAPI 3.1, made from the route table."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec

from topics.api.routes import ROUTES, Route

_BOOLEAN: Final = {"touch", "if_empty", "return_seqs", "create", "history", "lenient"}
_TEXT: Final = {
    "topic",
    "prefix",
    "cursor",
    "source",
    "dest",
    "tag",
    "node",
    "key",
    "include",
    "match",
    "idempotency_key",
    "token",
}

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string", "minLength": 1},
                "detail": {"type": "object"},
            },
        }
    },
}
_PERFORMANCE: Final = {
    "type": "object",
    "required": ["performance"],
    "properties": {
        "performance": {
            "type": "object",
            "required": ["server_total_ms"],
            "properties": {
                "server_total_ms": {"type": "number"},
                "wal_append_ms": {"type": "number"},
                "fsync_ms": {"type": "number"},
                "records_scanned": {"type": "integer"},
            },
        }
    },
}
_U64: Final = {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}


@cache
def openapi_json(version: str) -> bytes:
    return msgspec.json.encode(document(version))


def document(version: str) -> dict[str, Any]:
    shapes = sorted(
        {shape for route in ROUTES for shape in (route.body, route.answer) if shape}, key=lambda s: s.__name__
    )
    _, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "topics", "version": version, "description": "A durable event log over HTTP."},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR, "Performance": _PERFORMANCE},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{re.sub('[^A-Za-z0-9]+', '_', route.path)}".rstrip("_"),
        "summary": route.summary,
        "parameters": [*_path_parameters(route.path), *map(_query_parameter, route.query)],
        "responses": _responses(route),
    }
    if route.scope:
        operation["description"] = "Needs the scope " + "+".join(sorted(s.name.lower() for s in route.scope if s.name))
    if route.body is not None:
        operation["requestBody"] = {"required": route.method == "POST", "content": _body(route)}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "boolean"} if name in _BOOLEAN else {"type": "string"} if name in _TEXT else _U64
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _body(route: Route) -> dict[str, Any]:
    assert route.body is not None
    content: dict[str, Any] = {"application/json": {"schema": _reference(route.body)}}
    if route.bulk:
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
        content["application/vnd.apache.arrow.stream"] = {"schema": {"type": "string", "format": "binary"}}
    return content


def _responses(route: Route) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "object"} if route.answer is None else _reference(route.answer)
    if route.answer is not None and not route.probe:
        answer = {"allOf": [answer, {"$ref": "#/components/schemas/Performance"}]}
    content = {kind: {"schema": answer if kind == "application/json" else {}} for kind in route.kinds}
    error: dict[str, Any] = {
        "description": "What went wrong",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    # What is wrong with the address itself, or with a handshake, is said in plain text.
    refusal = {**error, "content": {**error["content"], "text/plain": {"schema": {"type": "string"}}}}
    return {
        "2XX": {"description": "Done", "content": content},
        "4XX": refusal,
        "5XX": error,
    }


def _reference(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}
