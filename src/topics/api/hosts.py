"""Which `Host` and `Origin` are ours. A page in somebody's browser may point a name of its own at this machine; its
requests then carry that name, and are refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class Hosts:
    """The names this server answers to; with `names` None, to all."""

    __slots__ = ("_names", "_seen")

    def __init__(self, names: Iterable[str] | None) -> None:
        self._names = None if names is None else frozenset(host_name(name) for name in names)
        self._seen: set[bytes] = set()
        """Headers found good; bounded, because clients send few different ones."""

    def allow(self, host: bytes | None, origin: bytes | None) -> bool:
        if self._names is None:
            return True
        return (host is None or self._good(host)) and (origin is None or self._good_origin(origin))

    def _good(self, host: bytes) -> bool:
        if host in self._seen:
            return True
        if not self._is_ours(host_name(host.decode("latin-1"))):
            return False
        if len(self._seen) < 64:
            self._seen.add(host)
        return True

    def _good_origin(self, origin: bytes) -> bool:
        scheme, mark, host = origin.decode("latin-1").partition("://")
        return bool(mark) and scheme in ("http", "https") and self._is_ours(host_name(host))

    def _is_ours(self, name: str) -> bool:
        assert self._names is not None
        if name in self._names or name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def host_name(host: str) -> str:
    """Without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
