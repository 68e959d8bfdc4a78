"""The answer to an append, in Python: the readable twin of `render_ack`."""

from __future__ import annotations


def render_ack(
    start: bytes,
    topic: bytes,
    first: int,
    count: int,
    seqs: bool,
    created: bool,
    deduped: bool,
    synced: bool,
    waited_ns: int,
    total_ns: int,
) -> bytes:
    """The JSON of an answer; behind `start`, a head up to the value of content-length, where there is one. `topic` must
    need no escapes: names that could be created do not."""
    last = first + count - 1
    listed = b',"seqs":[' + ",".join(map(str, range(first, last + 1))).encode() + b"]" if seqs else b""
    more = b""
    if not deduped:
        shape = b',"wal_append_ms":0.000000,"fsync_ms":%b' if synced else b',"wal_append_ms":%b,"fsync_ms":0.000000'
        more = shape % _ms(waited_ns)
    body = (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d%b,"head_seq":%d,"count":%d,"created":%b,"deduped":%b,'
        b'"performance":{"server_total_ms":%b%b}}'
    ) % (
        topic,
        first,
        last,
        listed,
        last,
        count,
        b"true" if created else b"false",
        b"true" if deduped else b"false",
        _ms(total_ns),
        more,
    )
    return b"%b%d\r\n\r\n%b" % (start, len(body), body) if start else body


def _ms(ns: int) -> bytes:
    return b"%d.%06d" % divmod(ns, 1_000_000)
