"""What the transport drives: who asks, what for, may they, and the handler that answers.

The order of the checks is part of the contract: host, probes, token, in-flight slot, scope, prefix, readiness, then the
path and the method; the body's size, type and shape come last.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import GeneratorType
from urllib.parse import parse_qsl

from topics.api.append import append
from topics.api.auth import ANYONE, Key, Keyring, Slots, bearer
from topics.api.bodies import Bodies
from topics.api.call import JSON, Call, decode_segment
from topics.api.express import AppendExpress, Station, Terminal
from topics.api.groupjobs import BY_EXPRESS
from topics.api.hosts import Hosts
from topics.api.http import Admission, Answer, Express, Head, Later, Request, Response, Socket, Stream
from topics.api.metrics import metrics
from topics.api.openapi import openapi_json
from topics.api.page import Page
from topics.api.probes import health_body
from topics.api.problems import fault, problem, told
from topics.api.routes import Node, Route, find, name_in, scope_of
from topics.api.service import Service
from topics.broker.steps import Steps
from topics.host.clock import Clock
from topics.model.errors import (
    Forbidden,
    HostNotAllowed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    PayloadTooLarge,
    ShuttingDown,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)

log = logging.getLogger("topics.api")

_ANSWERS = (Response, Later, Stream, Socket)
_PLACES_MAX = 8192
"""Paths whose place in the table is remembered."""


@dataclass(frozen=True, slots=True)
class AppOptions:
    version: str = ""
    keyring: Keyring = field(default_factory=Keyring)
    max_body_bytes: int = 64 * 1024 * 1024
    max_inflight_per_key: int = 1000
    max_inflight_body_bytes: int = 512 * 1024 * 1024
    probe_auth: bool = False
    pages: Mapping[str, Page] = field(default_factory=dict)
    """The files of the built-in page, by path."""
    open_pages: bool = False
    """They are served without a key."""
    hosts: tuple[str, ...] | None = None
    """Names that `Host` and `Origin` may carry besides loopback ones; None = any."""


class Application:
    def __init__(self, options: AppOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self._service: Service | None = None
        self.progress = 0.0
        """How far recovery is, 0 to 1."""
        self._started_ns = clock.monotonic_ns()
        self._slots = Slots(options.max_inflight_per_key)
        self._hosts = Hosts(options.hosts)
        self._bodies = Bodies(options.max_inflight_body_bytes)
        self._places: dict[tuple[str, str], tuple[Route, tuple[str | None, ...]]] = {}
        """What a method and a path were found to mean."""
        self._terminal = Terminal(self._slots)
        self._expresses: dict[tuple[object, ...], Express] = {}

    @property
    def service(self) -> Service | None:
        """None until recovery has ended."""
        return self._service

    @service.setter
    def service(self, service: Service) -> None:
        self._service = service
        self._terminal.station = Station(service)

    @property
    def stopping(self) -> bool:
        return self._terminal.stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._terminal.stopping = stopping

    @property
    def uptime_ms(self) -> int:
        return (self.clock.monotonic_ns() - self._started_ns) // 1_000_000

    # -- the head ------------------------------------------------------------------------------------------------------

    def begin(self, head: Head) -> Admission | Response:
        try:
            return self._admit(head)
        except TopicsError as error:
            return problem(error)

    def _admit(self, head: Head) -> Admission:
        headers = head.headers
        if not self._hosts.allow(headers.get(b"host"), headers.get(b"origin")):
            raise HostNotAllowed("this server does not answer to that Host or Origin; see TOPICS_ALLOWED_HOSTS")
        if not self.options.keyring.on and self.service is not None:
            # Nobody to tell apart, and nothing that comes and goes: the same path always means the same.
            place = self._places.get((head.method, head.path))
            if place is not None:
                call = Call(place[0], head, place[1])  # type: ignore[arg-type]
                return Admission(call, self._body_max(place[0]), None, self._bodies)
        segments = head.path.split("/")[1:]
        node, raw_names = find(segments, head.method)
        key = self._key(head, node)
        if not self._slots.take(key):
            raise Throttled("this key has too many requests in flight; try again")
        try:
            if key is not ANYONE:
                self._authorise(key, head.method, segments, node)
            route = self._route(head, node)
            if self.service is None and route.handler is not None:
                raise NotReady("the server is replaying its log", replay_progress=round(self.progress, 4))
            names = tuple(decode_segment(raw) for raw in raw_names) if raw_names else ()
            call = Call(route, head, names, key)  # type: ignore[arg-type]
        except BaseException:
            self._slots.give(key)
            raise
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        self._places[head.method, head.path] = route, names
        release = None if key is ANYONE else partial(self._slots.give, key)
        return Admission(call, self._body_max(route), release, self._bodies)

    def _body_max(self, route: Route) -> int:
        own = route.body_bytes_max
        return self.options.max_body_bytes if own is None else own

    def _key(self, head: Head, node: Node | None) -> Key:
        keyring = self.options.keyring
        if not keyring.on or self._is_open(node):
            return ANYONE
        if node is not None and head.method == "GET" and (route := node.methods.get("GET")) and route.by_session:
            return ANYONE
        token = bearer(head.headers.get(b"authorization"))
        if token is None and head.method == "GET" and node is not None:
            token = _token_in_query(head, node.methods.get("GET"))
        key = None if token is None else keyring.find(token)
        if key is None:
            raise Unauthorized("a known key is needed, as authorization: Bearer <key>")
        return key

    def _is_open(self, node: Node | None) -> bool:
        """Whether whoever asks here may do so without a key."""
        route = None if node is None else node.methods.get("GET")
        if route is None:
            return False
        return (route.probe and not self.options.probe_auth) or (route.page and self.options.open_pages)

    @staticmethod
    def _authorise(key: Key, method: str, segments: list[str], node: Node | None) -> None:
        scope = scope_of(segments, method, node)
        if not key.may(scope):
            raise Forbidden(f"this key lacks the scope {scope.name.lower() if scope.name else scope}")
        name = name_in(segments)
        if name is not None and not key.may_name(name):
            raise Forbidden("this key may not use that name")

    def _route(self, head: Head, node: Node | None) -> Route:
        if node is None:
            if self.service is None:
                raise NotReady("the server is replaying its log", replay_progress=round(self.progress, 4))
            raise NotFound("there is nothing at this path")
        method = "GET" if head.method == "HEAD" else head.method
        route = node.methods.get(method)
        if route is None:
            raise MethodNotAllowed("this path does not take that method", allow=node.allow())
        return route

    def express(self, head: Head, admission: Admission, answer_max: int | None) -> Express | None:
        call = admission.context
        if not isinstance(call, Call) or None in call.names:
            return None
        if call.route.handler is not append and call.route.handler not in BY_EXPRESS:
            return None
        headers = head.headers
        if not call.content_type().startswith(JSON) or b"idempotency-key" in headers:
            return None
        if int(headers.get(b"content-length", b"0")) > admission.body_limit:
            return None
        handler, names, key = call.route.handler, call.names, call.key
        of_jobs = BY_EXPRESS.get(handler)
        seqs = call.flag("return_seqs", True)
        asked = (handler, names, key, seqs, answer_max)
        express = self._expresses.get(asked)
        if express is None:
            if len(self._expresses) >= _PLACES_MAX:
                self._expresses.clear()
            if of_jobs is not None:
                express = of_jobs(self._terminal, names, key, answer_max)
            else:
                express = AppendExpress(self._terminal, names[0], key, seqs, answer_max)
            self._expresses[asked] = express
        return express

    # -- the whole request ---------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Answer | Later | Awaitable[Answer]:
        call = request.context
        assert isinstance(call, Call)
        call.body = request.body
        if call.route.handler is None:
            return self._own(call)
        service = self.service
        try:
            if service is None:
                raise NotReady("the server is replaying its log", replay_progress=round(self.progress, 4))
            if None in call.names:
                return Response(400, b"the path is not UTF-8", b"text/plain; charset=utf-8")
            if self.stopping:
                raise ShuttingDown("the server is shutting down")
            answer = call.route.handler(service, call)
            if isinstance(answer, GeneratorType):
                return service.pump.start(_guarded(answer))
            if isinstance(answer, _ANSWERS):
                return answer
            return _guarded_async(answer)  # type: ignore[arg-type]
        except TopicsError as error:
            return told(error)
        except Exception:
            log.exception("a handler failed: %s %s", call.head.method, call.route.path)
            return fault()

    def _own(self, call: Call) -> Response:
        """What is answered ready or not."""
        if call.route.path == "/v0/metrics":
            return metrics(self.service, call, self.uptime_ms, self.progress)
        if call.route.path == "/openapi.json":
            return Response(200, openapi_json(self.options.version))
        if call.route.page:
            page = self.options.pages.get(call.route.path)
            return problem(NotFound("this server shows no page")) if page is None else page.answer()
        return Response(200, health_body(self.options.version, self.uptime_ms, self.service))

    # -- what the transport finds wrong --------------------------------------------------------------------------------

    def too_large(self, head: Head) -> Response:
        node, _ = find(head.path.split("/")[1:], head.method)
        route = node.methods.get(head.method) if node is not None else None
        limit = self._body_max(route) if route is not None else self.options.max_body_bytes
        return problem(PayloadTooLarge(f"the body has more than {limit} bytes, the limit here"))

    def unsupported_encoding(self, head: Head) -> Response:
        return problem(UnsupportedMediaType("a body may come as it is, or as gzip or zstd"))

    def bad_request(self, why: str) -> Response:
        return problem(InvalidRequest(why))


def _token_in_query(head: Head, route: Route | None) -> bytes | None:
    """Browsers cannot set headers on an event stream; of several tokens the first counts."""
    if route is None or not route.query_token:
        return None
    for name, value in parse_qsl(head.query, errors="surrogateescape"):
        if name == "token":
            return value.encode("utf-8", "surrogateescape")
    return None


async def _guarded_async(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except TopicsError as error:
        return told(error)
    except Exception:
        log.exception("a handler failed")
        return fault()


def _guarded(steps: Steps[Answer]) -> Steps[Answer]:
    """Errors are answers."""
    try:
        return (yield from steps)
    except TopicsError as error:
        return told(error)
    except Exception:
        log.exception("a handler failed")
        return fault()
