"""A client whose errors say what to do about a server that does not answer, or does not know the key: Spark shows them
far from the query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from topics.client.retry import RetryPolicy
from topics.client.sync import Client
from topics.client.transport import Answer, HttpRequest, OpenAnswer, Transport
from topics.client.url import Place
from topics.model.errors import Unauthorized, Unreachable
from topics.spark.words import Words

UNTRUSTED: Final = "the variable SSL_CERT_FILE names the PEM file of another authority to trust"
_UNKNOWN_KEY: Final = 401


def client_for(url: str, token: str | None, timeout_ms: int, words: Words) -> Client:
    retry = RetryPolicy(deadline_s=timeout_ms / 1000, attempts_max=10)
    if words.gone is None or words.key is None:
        return Client(url, token=token, retry=retry)
    from topics.client.sync_transport import PoolTransport

    transport = _Advising(PoolTransport(Place.parse(url, token)), words.gone, words.key)
    return Client(url, token=token, retry=retry, transport=transport)


@dataclass(frozen=True, slots=True)
class _Advising:
    transport: Transport
    remedy: str
    key: str

    def send(self, request: HttpRequest, timeout_s: float) -> Answer:
        with self._advised():
            answer = self.transport.send(request, timeout_s)
        self._check_known(answer.status)
        return answer

    def open(self, request: HttpRequest, timeout_s: float) -> OpenAnswer:
        with self._advised():
            opened = self.transport.open(request, timeout_s)
        try:
            self._check_known(opened.status)
        except Unauthorized:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        self.transport.close()

    def _check_known(self, status: int) -> None:
        """Without the server's own word, which is about a header of HTTP."""
        if status == _UNKNOWN_KEY:
            raise Unauthorized(f"the server wants a key that it knows: it is taken from {self.key}", status=status)

    @contextmanager
    def _advised(self) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            remedy = UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in error.message else self.remedy
            raise Unreachable(f"{error.message}: {remedy}", **error.facts) from error.__cause__
