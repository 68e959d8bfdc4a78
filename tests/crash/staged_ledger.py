"""What was answered about staged parts, and the question asked after every crash."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.rules.txns import parse_txn
from topics.storage.staging import known_commit, stages_of
from topics.storage.store import Store


@dataclass
class StagedLedger:
    """Per topic id: parts and commits that were acknowledged."""

    parts: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(topic id, txn, part) -> records."""
    commits: dict[tuple[int, str], tuple[int | None, int]] = field(default_factory=dict)
    """(topic id, txn) -> first seq, count."""
    several: list[tuple[str, list[int]]] = field(default_factory=list)
    """Commits over several topics that were asked for: they came about in all of them or in none."""

    def check(self, store: Store) -> None:
        for (topic_id, txn), (first, count) in self.commits.items():
            topic = store.by_id.get(topic_id)
            if topic is None:
                continue
            row = known_commit(topic, parse_txn(txn))
            assert row is not None, f"the commit of {txn} in topic {topic_id} is forgotten"
            assert row.first_seq in (first or 0, 0), f"the commit of {txn} is {row}, it was {first}"
            assert row.records in (count, 0), f"the commit of {txn} is {row}, it was {count}"
        for (topic_id, txn, part), count in self.parts.items():
            topic = store.by_id.get(topic_id)
            if topic is None or known_commit(topic, parse_txn(txn)) is not None:
                continue
            stage = stages_of(topic).open.get(txn)
            assert stage is not None, f"the stage {txn} of topic {topic_id} is gone"
            assert part in stage.parts, f"part {part} of {txn} in topic {topic_id} is gone"
            assert stage.parts[part].head.count == count
        for txn, topic_ids in self.several:
            known = {known_commit(store.by_id[i], parse_txn(txn)) is not None for i in topic_ids if i in store.by_id}
            assert len(known) <= 1, f"the commit of {txn} came about in some topics only"
