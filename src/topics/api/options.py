"""What may be set on the transport: times, sizes and counts that bound what one client can take."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class TlsOptions:
    cert: str
    """File with the certificate chain, PEM."""
    key: str
    """File with its private key, PEM."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """Every time is in seconds and judged by a coarse tick, so it may run over by a fifth."""

    header_timeout_s: float = 60.0
    """From the first byte of a request (or the opening of the connection) to the end of its head."""
    idle_timeout_s: float = 120.0
    """A kept-alive connection without a request. Larger spares reconnects and costs a file descriptor each."""
    body_window_s: float = 30.0
    """A body under way must bring `body_window_bytes` within each such window, else 408."""
    body_window_bytes: int = 4 * KIB
    write_stall_s: float = 60.0
    """A peer that takes none of the bytes waiting for it for so long is cut off."""
    linger_s: float = 2.0
    """How long input is read and dropped after a refusal, so that the peer gets to see the answer before a reset."""
    leave_s: float = 1.0
    """What a stream's task gets to notice that its peer is gone, and a half-closed client to see its answers."""
    ping_s: float = 20.0
    """Silence on HTTP/2 and WebSocket after which the peer is pinged; after three times that it is cut off."""

    head_bytes_max: int = 128 * KIB
    """Request line and headers; more is 431. The `Last-Event-ID` of a watch with the most topics and the longest names
    has some 95,000 bytes, and whoever sends it must not be refused."""
    headers_max: int = 128
    """Different header names; more is 431."""
    pipeline_max: int = 64
    """Requests of one HTTP/1 connection in flight; reading pauses beyond it."""
    discard_max: int = MIB
    """Body bytes read and dropped to keep a connection alive whose request was refused at its head."""
    compress_min: int = KIB
    """Smaller answers are never compressed: the headers would eat the gain."""
    connections_max: int = 16_384
    """Open connections; one more is closed at once."""
    write_high: int = 256 * KIB
    """Unsent bytes of one connection beyond which `Sink.drain` waits and reading pauses."""

    kernel_unsent_max: int = 128 * KIB
    """Bytes of a stream or WebSocket that the kernel takes ahead of what the peer's window lets it send."""

    ws_frame_max: int = 16 * MIB
    ws_message_max: int = 64 * MIB
    ws_waiting_max: int = 64
    """Messages received and not yet taken by the handler; reading pauses beyond it."""

    h2_stream_window: int = MIB
    h2_connection_window: int = 4 * MIB
    h2_streams_max: int = 1024
    h2_bodies_max: int = 256 * MIB
    """Bytes of bodies being collected on one connection; a stream that would exceed it is refused."""
    h2_answers_max: int = 16 * MIB
    """Bytes of answers on one connection that its peer has not taken, beyond which further requests wait."""
    h2_resets_max: int = 200
    """Streams a client may cancel before their answer, beyond half of all it opened; then it must calm down."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value <= 0:
                raise ValueError(f"{option.name} must be greater than 0, not {value}")
        if self.h2_connection_window < 65_535:
            raise ValueError(f"h2_connection_window cannot be below 65535, not {self.h2_connection_window}")

    @property
    def tick_s(self) -> float:
        """How often times are checked: a fifth of the shortest, between 20 ms and a second."""
        shortest = min(getattr(self, option.name) for option in fields(self) if option.name.endswith("_s"))
        return float(min(1.0, max(0.02, shortest / 5)))
