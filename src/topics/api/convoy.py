"""What all convoys share: requests of one turn of the loop that became one submission, and hear of it together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from topics.api.http import Rider
from topics.api.known import Known
from topics.api.problems import fault
from topics.api.service import Service
from topics.storage.submission import Submission


class Slotted(Protocol):
    """What a request came by, which may hold one of its key's slots."""

    def give_slot(self) -> None: ...


class Convoy(ABC):
    """The store releases it when its submission is settled."""

    __slots__ = ("_service", "submission")

    def __init__(self, service: Service) -> None:
        self._service = service
        self.submission: Submission | None = None
        """Set by the broker, under the store's lock: from then on it may be released."""

    @abstractmethod
    def resume(self) -> None:
        """On the loop: the submission is settled."""

    def release(self) -> None:
        """By the store, under its lock."""
        submission = self.submission
        assert submission is not None
        assert submission.shard is not None
        pump = self._service.pump
        if submission.settled:
            pump.released(self)
            return
        submission.waiters.append(self)
        pump.lead_wanted(submission.shard)

    def _send_back(self, tickets: Iterable[tuple[Rider, Slotted, Known, bytes, int, int, Any]], failed: bool) -> None:
        """Nothing was done for these, and the usual way is theirs; `failed`: that is not known, so nobody tries."""
        for rider, express, known, data, start, _, _ in tickets:
            express.give_slot()
            try:
                if failed:
                    rider.arrived_late(known, fault())
                else:
                    rider.sent_back(known, data, start)
            except Exception as trouble:
                self._undelivered(trouble)

    def _undelivered(self, trouble: Exception) -> None:
        """Of one of them: the others get their answers."""
        context = {"message": "an answer was not delivered", "exception": trouble}
        self._service.loop.call_exception_handler(context)
