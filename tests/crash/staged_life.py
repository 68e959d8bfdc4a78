"""What a life does with staged parts, and what it was answered; the life's ledger asks for it after every crash."""

from __future__ import annotations

from typing import Any

from tests.crash.life import Life
from topics.broker.staging import Outcome, Staged, StoredPart
from topics.format.ops import prepare
from topics.model.config import Durability
from topics.model.errors import TopicsError
from topics.rules.txns import parse_txn
from topics.storage.staging import known_commit
from topics.testing.driving import run_in_place


class StagedLife:
    """Stages, commits and aborts in a life, written into its ledger."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.told = life.ledger.staged

    @property
    def cases(self) -> Staged:
        return Staged(self.life.store)

    def put(self, name: str, txn: str, part: str, count: int = 2, tag: str | None = None) -> StoredPart:
        """The same part has the same bytes whenever it is put."""
        texts = [b'"%b %b %d"' % (txn.encode(), part.encode(), index) for index in range(count)]
        records: list[dict[str, Any]] = [{"data": text, **({"tag": tag} if tag else {})} for text in texts]
        done = run_in_place(self.life.store, self.cases.put(name, txn, part, prepare(records)))
        if not done.committed:
            self.told.parts[self.life.store.topic(name).id, txn, part] = count
        return done

    def commit(self, txn: str, topics: dict[str, list[tuple[str, int]]], query: str = "") -> dict[str, Outcome]:
        """`topics`: the parts of each and how many records they hold."""
        store = self.life.store
        batches = {}
        for name, parts in topics.items():
            if known_commit(store.topic(name), parse_txn(txn)) is None:
                texts = [b'"%b %b %d"' % (txn.encode(), part.encode(), i) for part, n in parts for i in range(n)]
                if texts:
                    batches[name] = self.life.told(name).send(store.topic(name).ordered.head + 1, texts, None)
        if len(topics) > 1:
            self.told.several.append((txn, [store.topic(name).id for name in topics]))
        names = {name: [part for part, _ in parts] for name, parts in topics.items()}
        try:
            done = run_in_place(store, self.cases.commit(txn, names, query))
        except TopicsError:
            for name, batch in batches.items():
                if store.topic(name).ordered.head < batch.first:  # it got no seqs: others will
                    self.life.told(name).batches.remove(batch)
            raise
        for name, batch in batches.items():
            assert done[name].first_seq == batch.first, f"{name}: {done[name]} was not expected at {batch.first}"
            self.life.told(name).ack(batch, Durability.FSYNC)
        for name, found in done.items():
            self.told.commits[store.topic(name).id, txn] = (found.first_seq, found.count)
        return done

    def abort(self, name: str, txn: str) -> bool:
        topic_id = self.life.store.topic(name).id
        self.told.parts = {key: n for key, n in self.told.parts.items() if key[:2] != (topic_id, txn)}
        return run_in_place(self.life.store, self.cases.abort(name, txn))
