"""The program that is killed: it opens a store, checks it against the journals, and then works until it dies.

    python -m tests.integration.kill_child <data> <journals> <run> <seed> <habits> <options as JSON>

It says `ready` when the check has passed. Habits weigh what it does beside appending: `deletes` for many of them,
`no-checkpoints` for none of those.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from random import Random

import topics
from tests.integration.ledger import (
    CAPPED,
    SHARED,
    THREADS,
    Batch,
    Journal,
    Ledger,
    check,
    configs,
    own,
    phoenix,
    records_of,
    tag_of,
)


class Worker(threading.Thread):
    def __init__(self, log: topics.Log, ledger: Ledger, journals: Path, run: int, thread: int, rng: Random) -> None:
        super().__init__(name=f"worker-{thread}", daemon=True)
        self.log, self.run_number, self.number_of_thread, self.rng = log, run, thread, rng
        self.unanswered = ledger.unanswered(thread)
        self.journal = Journal(journals, run, thread)
        self.next_number = 1
        self.topics = [*SHARED, CAPPED, own(thread), own(thread), phoenix(thread)]
        self.habits = ""

    def run(self) -> None:
        if self.unanswered is not None:
            self.append_again(self.unanswered)
        deletes = 30 if self.habits == "deletes" else 8
        while True:
            dice = self.rng.randrange(100)
            if dice < deletes:
                self.delete()
            elif dice < deletes + 2:
                self.drop()
            elif dice < deletes + 4 and self.habits != "no-checkpoints":
                self.log.checkpoint()
            elif dice < deletes + 6:
                self.log.configure(own(self.number_of_thread), durability=self.rng.choice(("memory", "disk", "fsync")))
            else:
                self.append()

    def append(self) -> None:
        topic = self.rng.choice(self.topics)
        count = self.rng.choice((1, 1, 2, 5, 17))
        number, self.next_number = self.next_number, self.next_number + count
        me = self.number_of_thread
        key = f"{self.run_number}.{me}.{number}" if self.rng.random() < 0.5 else "-"
        self.journal.write("append", topic, self.run_number, number, count, key)
        records = records_of(self.run_number, me, number, count)
        done = self.log.append(topic, records, idempotency_key=None if key == "-" else key)
        assert done.last_seq - done.first_seq + 1 == count
        self.journal.write("acked", done.first_seq)

    def append_again(self, batch: Batch) -> None:
        """Nobody knows whether it was done; with its key it is done once, whatever happened."""
        self.journal.write("append", batch.topic, batch.run, batch.number, batch.count, batch.key)
        records = records_of(batch.run, batch.thread, batch.number, batch.count)
        done = self.log.append(batch.topic, records, idempotency_key=batch.key)
        self.journal.write("acked", done.first_seq)

    def delete(self) -> None:
        me = self.number_of_thread
        if self.rng.random() < 0.3:
            head = self.log.info(own(me)).head_seq
            before = max(head - self.rng.randrange(40), 0)
            self.journal.write("before", own(me), before)
            self.log.delete(own(me), before_seq=before)
        else:
            topic = self.rng.choice([*SHARED, own(me), phoenix(me)])
            tag = self.rng.choice((tag_of((0, me, self.rng.randrange(4))), f"t{me}.*"))
            self.journal.write("tag", topic, tag)
            self.log.delete(topic, tag=tag)
        self.journal.write("acked")

    def drop(self) -> None:
        name = phoenix(self.number_of_thread)
        self.journal.write("drop", name)
        self.log.drop(name)
        self.journal.write("acked")
        self.log.create(name, **configs()[name])


def main() -> None:
    data, journals, run, seed, habits, options = sys.argv[1:]
    ledger = Ledger(Path(journals))
    log = topics.open(data, **json.loads(options))
    check(log, ledger)
    for name, config in configs().items():
        log.create(name, **config)
    print("ready", flush=True)
    workers = [
        Worker(log, ledger, Path(journals), int(run), thread, Random(f"{seed} {thread}")) for thread in range(THREADS)
    ]
    for worker in workers:
        worker.habits = habits
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit("a worker ended, which only a failure explains")


if __name__ == "__main__":
    main()
