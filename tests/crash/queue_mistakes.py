"""Mistakes that one could make in the queues of the engine, each as a patch of the running one; see `mistakes.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.crash.mistakes import Patches
from topics.format.control import LeaseEvent
from topics.model.leaserows import LeaseRow
from topics.rules.tokens import Tokens
from topics.storage import cut, leasing
from topics.storage.queue import Queue


def lease_ids_given_out_before_they_are_reserved(patches: Patches) -> None:
    real = Tokens.ask

    def ask(self: Tokens, ceiling: int) -> None:
        real(self, ceiling)
        self.apply_ceiling(ceiling)

    patches.set(Tokens, "ask", ask)


def ack_before_its_delete_is_synced(patches: Patches) -> None:
    real = leasing._order_end

    def order_end(*given: Any) -> Any:
        submission = real(*given)
        if submission is not None:
            submission.needs_sync = False
        return submission

    patches.set(leasing, "_order_end", order_end)


def delivery_counts_not_logged(patches: Patches) -> None:
    real = Queue.frame

    def frame(self: Queue, topic_id: int, event: LeaseEvent, node: str, rows: Sequence[LeaseRow], *rest: Any) -> bytes:
        return real(self, topic_id, event, node, [(*row[:3], 0) for row in rows], *rest)

    patches.set(Queue, "frame", frame)


def delays_replayed_as_due_at_once(patches: Patches) -> None:
    real = Queue.frame

    def frame(self: Queue, topic_id: int, event: LeaseEvent, node: str, rows: Sequence[LeaseRow], *rest: Any) -> bytes:
        if event == LeaseEvent.RELEASED:
            rows = [(seq, token, 0, count) for seq, token, _, count in rows]
        return real(self, topic_id, event, node, rows, *rest)

    patches.set(Queue, "frame", frame)


def leases_left_out_of_the_snapshot(patches: Patches) -> None:
    patches.set(cut, "queue_row", lambda _: None)


def lease_ids_go_on_at_once_behind_damage(patches: Patches) -> None:
    patches.set(Tokens, "leap", lambda self: None)
