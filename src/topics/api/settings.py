"""What can be set on the server. Each field tells its unit and what larger or smaller costs.

What else the transport knows, and nobody should need to set, is in `options.py`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from topics.api.auth import Keyring
from topics.api.options import TransportOptions
from topics.model.errors import InvalidConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = "127.0.0.1"
    """Where to listen. With a port inside (`0.0.0.0:4000`, `[::1]:4000`) it is the full address; `port` is ignored."""
    port: int = 4000
    """TCP port; 0 = any free one, which `port_file` then tells."""
    port_file: str | None = None
    """File that gets `host:port`, atomically, once the server is ready."""
    data_dir: str = "./topics-data"
    """The data directory; one process at a time may hold it."""
    tls_cert: str | None = None
    """PEM file of the certificate chain; needs `tls_key`. Read again on SIGHUP."""
    tls_key: str | None = None
    """PEM file of the private key."""

    def __post_init__(self) -> None:
        bound(self, "port", 0, 65_535)
        for name in ("host", "data_dir"):
            if not getattr(self, name):
                raise InvalidConfig(f"option {name!r} is empty; leave it out to get the default")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidConfig(f"TLS needs both tls_cert and tls_key, and {missing} is not set; set it, or neither")
        split_address(self.host, self.port)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind."""
        return split_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    api_keys: Keyring = field(default_factory=Keyring)
    """Comma-separated `secret[:scopes[:prefixes]]`; empty = no authentication. Only digests are kept."""
    allow_insecure_no_auth: bool = False
    """Listen beyond loopback without keys. Only where something else keeps strangers out."""
    probe_auth: bool = False
    """Ask for a key on health and readiness too."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that `Host` and `Origin` may carry; loopback names and the bound address always may."""
    show_paths: bool | None = None
    """Name the files of segments in answers. Unset = only when listening on loopback."""


@dataclass(frozen=True, slots=True)
class LimitOptions:
    max_body_bytes: int = 64 * MIB
    """Largest request body, after inflation; each request in flight may hold this much memory. 0 refuses every body."""
    max_routers: int = 10_000
    """Routers in the store; 0 = no limit."""
    max_watch_sessions: int = 10_000
    """Watch sessions; 0 = no limit. Each holds a cursor per topic in memory."""
    max_sse_connections: int = 10_000
    """Open streams of all keys together; 0 = no limit. Each holds a socket."""
    max_sse_connections_per_key: int = 1_000
    """Open streams of one key; 0 = no limit."""
    max_inflight_per_key: int = 1_000
    """Requests of one key being worked on; 0 = no limit. Smaller keeps one client from starving the others."""
    max_inflight_body_bytes: int = 512 * MIB
    """Bytes of large request bodies in memory at once, over all connections; 0 = no limit. One more is 429, as
    a WebSocket message 1013. A body by itself always passes."""
    max_total_bytes: int = 0
    """Accounted bytes of all live records; 0 = no limit."""
    test_min_heartbeat_ms: int = 1_000
    """Lowest heartbeat a watch may ask for, ms. For tests only."""

    def __post_init__(self) -> None:
        for name in (
            "max_routers", "max_watch_sessions", "max_sse_connections", "max_sse_connections_per_key",
            "max_inflight_per_key", "max_inflight_body_bytes", "max_total_bytes",
        ):  # fmt: skip
            bound(self, name, 0, (1 << 63) - 1)
        bound(self, "max_body_bytes", 0, 1 << 32)
        bound(self, "test_min_heartbeat_ms", 1, 1_000)


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What one connection may take. Times are judged by a coarse tick, so they may run over by a fifth."""

    header_timeout_ms: int = 60_000
    """From the first byte of a request (or the opening of the connection) to the end of its head; then 408."""
    idle_timeout_ms: int = 120_000
    """How long a kept-alive connection may be without a request. Larger spares reconnects, costs descriptors."""
    body_window_ms: int = 30_000
    """A body under way must bring `body_window_bytes` within each such window, else 408."""
    body_window_bytes: int = 4_096
    """The slowest body that is waited for, in bytes per window."""
    write_stall_ms: int = 60_000
    """A peer that takes none of the bytes waiting for it for so long is cut off; a watch goes on where it was when it
    comes again. Larger is kinder to slow networks and keeps up to 1 MiB for each for longer."""
    ping_ms: int = 20_000
    """Silence on HTTP/2 and WebSocket after which the peer is pinged; after three times that it is cut off."""
    max_connections: int = 16_384
    """Open connections; one more is closed at once. Each costs a file descriptor and some 10 KiB."""
    max_head_bytes: int = 131_072
    """Request line and headers together; more is 431. A smaller one refuses the `Last-Event-ID` of a watch of many
    topics with long names."""
    max_headers: int = 128
    """Different header names of a request; more is 431."""
    max_pipelined: int = 64
    """Requests of one HTTP/1 connection being worked on; reading pauses beyond it."""

    def __post_init__(self) -> None:
        for one in fields(self):
            bound(self, one.name, 1, 1 << 40)

    def options(self) -> TransportOptions:
        return TransportOptions(
            header_timeout_s=self.header_timeout_ms / 1000,
            idle_timeout_s=self.idle_timeout_ms / 1000,
            body_window_s=self.body_window_ms / 1000,
            body_window_bytes=self.body_window_bytes,
            write_stall_s=self.write_stall_ms / 1000,
            ping_s=self.ping_ms / 1000,
            connections_max=self.max_connections,
            head_bytes_max=self.max_head_bytes,
            headers_max=self.max_headers,
            pipeline_max=self.max_pipelined,
        )


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Accepted so that an environment made for the contract starts; there is no cold tier in this version."""

    cold_dir: str | None = None
    """A directory or `s3://bucket/prefix` for cold segments. Not in effect in this version; setting it warns."""
    cold_codec: Literal["zstd", "lz4", "s2", "none", "raw"] = "zstd"
    """Compression of cold segments. Not in effect in this version."""
    hot_retain_segments: int = 4
    """Sealed segments of a topic that stay hot; 0 = none. Not in effect without a cold tier."""
    hot_retain_bytes: int = 0
    """Bytes of sealed segments that stay hot; 0 = no limit by bytes. Not in effect without a cold tier."""

    def __post_init__(self) -> None:
        bound(self, "hot_retain_segments", 0, 1 << 40)
        bound(self, "hot_retain_bytes", 0, (1 << 63) - 1)
        if self.cold_codec not in ("zstd", "lz4", "s2", "none", "raw"):
            raise InvalidConfig(f"option 'cold_codec' is {self.cold_codec!r}; use zstd, lz4, s2, none or raw")


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """Bounds of the staged append."""

    staged_max_bytes: int = 10 * 1024 * MIB
    """Bytes of all open stages together; 0 = no limit. Larger lets slow sinks fill the disk."""
    staged_ttl_ms: int = 86_400_000
    """An open stage is dropped this long after its last part; a restart begins this time anew."""
    txn_memory_ms: int = 7 * 86_400_000
    """How long a committed transaction without a version is remembered; a repeat later than this appends again."""

    def __post_init__(self) -> None:
        for name in ("staged_max_bytes", "staged_ttl_ms", "txn_memory_ms"):
            bound(self, name, 0, (1 << 63) - 1)


def bound(options: Any, name: str, low: int, high: int) -> None:
    value = getattr(options, name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidConfig(f"option {name!r} is {value!r}; it must be a whole number from {low} to {high}")


def split_address(host: str, port: int) -> tuple[str, int]:
    """`host` may be a full address, whose port then counts. A bare IPv6 address is a host."""
    try:
        ipaddress.IPv6Address(host)
        return host, port
    except ValueError:
        pass
    name, colon, digits = host.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        name, colon, digits = host, "", ""
    if not colon and not name:
        return host, port
    if colon and not (digits.isascii() and digits.isdigit() and int(digits) <= 65_535):
        raise InvalidConfig(f"option 'host' is {host!r}; after the last ':' a port from 0 to 65535 must follow")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not name:
        raise InvalidConfig(f"option 'host' is {host!r}; it names no host. Use 127.0.0.1 or 0.0.0.0 before the ':'")
    return name, int(digits) if colon else port
