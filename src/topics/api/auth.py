"""Who may do what: keys, their scopes and prefixes, and the slots a key may hold.

An entry of `TOPICS_API_KEYS` is `secret[:scopes[:prefixes]]`. The secret ends at the first `:`, scopes are joined by
`+`, prefixes by `|` and may hold `:` themselves. Only the SHA-256 digest of a secret is kept, so that neither a `repr`
nor a log line of these objects gives a token away; for the same reason no message here quotes an entry.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from topics.model.errors import InvalidConfig


class Scope(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    DELETE = enum.auto()
    ADMIN = enum.auto()


ALL_SCOPES: Final = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN
NO_SCOPE: Final = Scope(0)

SCOPE_WORDS: Final = {
    "read": Scope.READ,
    "r": Scope.READ,
    "write": Scope.WRITE,
    "w": Scope.WRITE,
    "delete": Scope.DELETE,
    "del": Scope.DELETE,
    "d": Scope.DELETE,
    "admin": Scope.ADMIN,
    "a": Scope.ADMIN,
    "rw": Scope.READ | Scope.WRITE,
}


@dataclass(frozen=True, slots=True)
class Key:
    """What one secret may do. Two keys are the same key when their secrets are."""

    name: str
    """`key 1`, `key 2` …: the place in the list, for logs and metrics. `anyone` where authentication is off."""
    scopes: Scope
    prefixes: tuple[bytes, ...]
    """Byte prefixes of the names it may touch; empty = any name."""
    digest: bytes = field(repr=False)

    def may(self, scope: Scope) -> bool:
        """True if the key has every one of these scopes."""
        return scope & self.scopes == scope

    def may_name(self, name: str | bytes) -> bool:
        if not self.prefixes:
            return True
        raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
        return raw.startswith(self.prefixes)


ANYONE: Final = Key("anyone", ALL_SCOPES, (), b"")
"""Stands for every caller where no keys are configured."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """The configured keys. With `on` false there is no authentication and `ANYONE` is the key of every request."""

    keys: tuple[Key, ...] = ()
    on: bool = False
    """An entry with an empty secret matches nobody but still turns authentication on, so this is not `bool(keys)`."""

    def find(self, token: bytes) -> Key | None:
        """The key of this token. Looks at every key, whatever it finds, so that time tells nothing about them."""
        digest = digest_of(token)
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def parse_keys(text: str) -> Keyring:
    """Read the comma-separated entries. An unknown scope word refuses the start instead of granting less or more."""
    keys: dict[bytes, Key] = {}
    on = False
    for number, entry in enumerate((part.strip() for part in text.split(",")), 1):
        if not entry:
            continue
        on = True
        secret, _, rest = entry.partition(":")
        scopes, _, prefixes = rest.partition(":")
        digest = digest_of(_bytes(secret))
        key = Key(f"key {number}", _scopes(scopes, number), tuple(_prefixes(prefixes)), digest)
        if secret:
            # Of a repeated secret the last entry counts, and takes the place of the first.
            keys[digest] = key
    return Keyring(tuple(keys.values()), on)


def _scopes(text: str, number: int) -> Scope:
    granted = NO_SCOPE
    for place, word in enumerate((part.strip().lower() for part in text.split("+")), 1):
        if not word:
            continue
        if word not in SCOPE_WORDS:
            # The word may be the rest of a secret that holds a colon: it is not quoted.
            raise InvalidConfig(
                f"entry {number} of the API keys has an unknown scope (word {place} after the first ':'). Use "
                f"{', '.join(SCOPE_WORDS)}, joined by '+', as in a-secret:read+write. A secret holds no ':' and no ','",
                entry=number,
            )
        granted |= SCOPE_WORDS[word]
    return granted or ALL_SCOPES


def _prefixes(text: str) -> Iterable[bytes]:
    return (_bytes(prefix.strip()) for prefix in text.split("|") if prefix.strip())


def _bytes(text: str) -> bytes:
    # The environment gives bytes that are not UTF-8 as surrogates; this is the way back to what was set.
    return text.encode("utf-8", "surrogateescape")


def bearer(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization` header: the exact word `Bearer`, the rest trimmed. None if there is no token."""
    if authorization is None or not authorization.startswith(b"Bearer "):
        return None
    return authorization[7:].strip() or None


Resolve = Callable[[str], list[str]]
"""The addresses of a host name; OSError if there are none."""


def resolve_host(host: str) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def is_loopback(host: str, resolve: Resolve = resolve_host) -> bool:
    """True if binding `host` can be reached from this machine alone. What cannot be resolved is not loopback."""
    try:
        addresses = [host] if _is_address(host) else resolve(host)
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(_is_address(one) and ipaddress.ip_address(one).is_loopback for one in addresses)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_bind(host: str, keyring: Keyring, *, allow_insecure: bool, resolve: Resolve = resolve_host) -> None:
    """Refuse to listen beyond loopback without keys: whoever reaches the port could read and drop every topic."""
    if keyring.on or allow_insecure or is_loopback(host, resolve):
        return
    raise InvalidConfig(
        f"refusing to listen on {host!r} without API keys: whoever reaches it could read, write and drop all topics. "
        "Set TOPICS_API_KEYS (for example TOPICS_API_KEYS='a-long-random-secret:read+write'), or listen on 127.0.0.1, "
        "or, where another guard stands in front, set TOPICS_ALLOW_INSECURE_NO_AUTH=1",
        host=host,
    )


class Slots:
    """How many of a thing each key holds at the moment: requests in flight, open streams."""

    __slots__ = ("_held", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """0 = no limit; nothing is counted then."""
        self._held: dict[bytes, int] = {}

    def take(self, key: Key) -> bool:
        """False if the key holds all it may. `ANYONE` is never counted: limits per key need keys."""
        if not self._limit or not key.digest:
            return True
        held = self._held.get(key.digest, 0)
        if held >= self._limit:
            return False
        self._held[key.digest] = held + 1
        return True

    def give(self, key: Key) -> None:
        """Once for each `take` that was granted."""
        if not self._limit or not key.digest:
            return
        left = self._held[key.digest] - 1
        if left:
            self._held[key.digest] = left
        else:
            del self._held[key.digest]

    def held(self, key: Key) -> int:
        return self._held.get(key.digest, 0)
