"""The server process: wires store, pump, application and listener, and takes them down in order.

The port opens at once and answers 503 `not_ready` while recovery runs in a thread. A stop answers parked long polls,
lets what is under way end, and closes the store with a clean checkpoint.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os.path import abspath
from typing import TypeVar

import uvloop

from topics.api.app import Application, AppOptions
from topics.api.auth import check_bind, is_loopback
from topics.api.listener import Listener, serve
from topics.api.live import LiveOptions
from topics.api.options import TlsOptions
from topics.api.page import Page
from topics.api.pool import Pool
from topics.api.pump import Pump
from topics.api.service import Service
from topics.broker.broker import Broker
from topics.broker.warmth import Warmth
from topics.config import Config
from topics.console import KINDS, asset
from topics.host.clock import Clock, SteadyClock, SystemClock
from topics.host.files import raise_file_limit
from topics.host.fs import Fs, OsFs, replace_file
from topics.host.ids import SystemIds
from topics.host.memory import keep_freed_memory
from topics.host.version import own_version
from topics.model.errors import InvalidConfig, TopicsError
from topics.rules.steady import Steady
from topics.storage.opening import open_store
from topics.storage.store import Store
from topics.storage.trouble import describe_trouble

log = logging.getLogger("topics.server")

T = TypeVar("T")

GRACE_S = 8.0
"""What requests under way get to end; the closing checkpoint comes after it, and both fit into ten seconds."""
TELL_S = 5.0
"""How often somebody who waits for a long recovery hears of it."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_READ_THREADS = 4
_STAGE_THREADS = 4
_GC_THRESHOLD = 50_000
"""Requests make few cycles; looking for them often costs more than they hold."""


def run(config: Config) -> int:
    """Serve until a signal; the exit status."""
    if not __debug__:
        print("error: python -O removes the checks this server relies on; start it without -O", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    keep_freed_memory()
    raise_file_limit()
    for warning in config.warnings:
        log.warning("%s", warning)
    return uvloop.run(_serve(config))


@dataclass(slots=True)
class _Parts:
    """What was started, in that order."""

    app: Application
    listener: Listener
    pump: Pump | None = None
    readers: Pool | None = None
    stagers: ThreadPoolExecutor | None = None


async def _serve(config: Config) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def ask(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    # Not by the loop: its handlers go with it when it closes, and who asks again would kill the process then.
    for number in _STOPS:
        signal.signal(number, ask)
    host, port = config.server.address
    check_bind(host, config.security.api_keys, allow_insecure=config.security.allow_insecure_no_auth)
    clock = SystemClock()
    parts = _Parts(*await _listen(config, host, port, clock))
    loop.add_signal_handler(signal.SIGHUP, _reload, parts.listener)
    try:
        await _open(config, parts, clock, stop)
        _announce(config, parts, OsFs())
        await stop.wait()
    finally:
        whole = await _close(parts)
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
    return 0 if whole else 1


def pages() -> dict[str, Page]:
    """The built-in page, by path."""
    return {
        "/" if name == "index.html" else f"/console/{name}": Page(kind, asset(name)) for name, kind in KINDS.items()
    }


async def _listen(config: Config, host: str, port: int, clock: Clock) -> tuple[Application, Listener]:
    security, limits = config.security, config.limits
    local = is_loopback(host)
    hosts = (*security.allowed_hosts, host) if local or security.allowed_hosts else None
    options = AppOptions(
        version=own_version(),
        keyring=security.api_keys,
        max_body_bytes=limits.max_body_bytes,
        max_inflight_per_key=limits.max_inflight_per_key,
        max_inflight_body_bytes=limits.max_inflight_body_bytes,
        probe_auth=security.probe_auth,
        pages=pages(),
        open_pages=local,
        hosts=hosts,
    )
    app = Application(options, clock)
    tls = None
    if config.server.tls_cert is not None and config.server.tls_key is not None:
        tls = TlsOptions(config.server.tls_cert, config.server.tls_key)
    try:
        return app, await serve(app, host, port, tls=tls, options=config.transport.options())
    except OSError as error:
        raise TopicsError(f"cannot listen on {host}:{port}: {_why_not(error)}") from error


def _why_not(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there; choose another port with --port"
        case errno.EACCES:
            return "this user may not; choose a port above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; choose one of its own with --host"
    return error.strerror or str(error)


async def _open(config: Config, parts: _Parts, clock: Clock, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    lock = threading.Lock()
    steady = SteadyClock(clock, Steady())
    started = clock.monotonic_ns()

    def tell(progress: float) -> None:
        parts.app.progress = progress

    def recover() -> Store:
        return open_store(OsFs(), abspath(config.server.data_dir), config.store, steady, SystemIds(), lock, tell)

    def said() -> str:
        after = ", then it stops" if stop.is_set() else ""
        return f"topics recovers {config.server.data_dir}: {parts.app.progress:.0%} done{after}"

    store = await told_meanwhile(asyncio.to_thread(recover), said)
    for line in store.report:
        log.warning("recovery: %s", line)
    store.ledger.bytes_max = config.limits.max_total_bytes
    staging = config.staging
    store.staging.bytes_max, store.staging.ttl_ms = staging.staged_max_bytes, staging.staged_ttl_ms
    store.staging.memory_ms = staging.txn_memory_ms
    parts.pump = Pump(store, lock, loop)
    parts.readers = Pool(_READ_THREADS, "topics-read", clock)
    parts.stagers = ThreadPoolExecutor(_STAGE_THREADS, thread_name_prefix="topics-stage")
    shown, limits = config.security.show_paths, config.limits
    host, _ = config.server.address
    service = Service(
        Broker(store, steady, limits.max_routers),
        parts.pump,
        clock,
        loop,
        parts.readers,
        parts.stagers,
        show_paths=is_loopback(host) if shown is None else shown,
        started_ns=started,
        recovery_ms=(clock.monotonic_ns() - started) / 1e6,
        connections=lambda: parts.listener.connections,
        keyring=config.security.api_keys,
        live_options=LiveOptions(
            sessions_max=limits.max_watch_sessions,
            streams_max=limits.max_sse_connections,
            streams_per_key_max=limits.max_sse_connections_per_key,
            heartbeat_ms_min=limits.test_min_heartbeat_ms,
        ),
    )
    service.live.start()
    service.broker.warmth = Warmth(store, parts.readers)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    parts.app.service = service


async def told_meanwhile(work: Awaitable[T], said: Callable[[], str], every_s: float = TELL_S) -> T:
    """Wait for the work; where it is long, say now and then how far it is."""
    under_way = asyncio.ensure_future(work)
    while not (await asyncio.wait({under_way}, timeout=every_s))[0]:
        print(said(), file=sys.stderr, flush=True)
    return under_way.result()


def _announce(config: Config, parts: _Parts, fs: Fs) -> None:
    host, _ = config.server.address
    address = f"[{host}]:{parts.listener.port}" if ":" in host else f"{host}:{parts.listener.port}"
    scheme = "http" if config.server.tls_cert is None else "https"
    keys = "keys are set" if config.security.api_keys.on else "no keys: anyone on this machine may do anything"
    if config.server.port_file is not None:
        try:
            replace_file(fs, abspath(config.server.port_file), address.encode())
        except OSError as error:
            raise InvalidConfig(
                f"the port file {config.server.port_file} cannot be written: {error.strerror}; name another with "
                "--port-file"
            ) from error
    print(
        f"topics {own_version()} serves {config.server.data_dir} at {scheme}://{address} "
        f"(new topics are of class disk; {keys}). Try: curl {scheme}://{address}/v0/topics",
        flush=True,
    )


async def _close(parts: _Parts) -> bool:
    """False if acknowledged writes may not be on the disk."""
    whole = True
    parts.app.stopping = True
    if parts.pump is not None:
        parts.pump.stop_waiting()
    if parts.app.service is not None:
        parts.app.service.live.stop()
    await parts.listener.stop(GRACE_S)
    if parts.stagers is not None:  # a part under way is written to its end before the directory is let go
        await asyncio.to_thread(parts.stagers.shutdown, cancel_futures=True)
    if parts.pump is not None:
        try:
            await asyncio.to_thread(parts.pump.close)
        except TopicsError as error:
            log.error("%s", error)
            whole = False
        else:
            for what, trouble in describe_trouble(parts.pump.store).items():
                log.warning("%s at the end: %s", what, trouble)
    if parts.readers is not None:
        parts.readers.shutdown(wait=False, cancel_futures=True)
    return whole


def _reload(listener: Listener) -> None:
    try:
        listener.reload_tls()
    except (OSError, TopicsError) as error:
        log.warning("the certificate was not read again, the old one stays: %s", error)
