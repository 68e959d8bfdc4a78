"""A history table: a Delta table that is its own checkpoint.

Every commit carries the transaction `topics:<store>-<topic_id>` whose version is the next seq to export. Mark, plan and
commit use one loaded table; a commit that finds the table changed, or another one in its place, fails, and nothing of
it is tried again: the next round loads the table anew and starts from its mark.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topics.model.errors import Conflict, InvalidConfig, InvalidRequest, StorageError
from topics.spark.joining import TableFile, choose, join
from topics.spark.parts import Shred, Written, table_schema
from topics.spark.places import Head, Loss
from topics.spark.turns import changed_since, sync_version, turn_at

if TYPE_CHECKING:
    from deltalake import DeltaTable

RECENT_COMMITS: Final = 100
"""Where a commit of this moment is looked for; others may have come after it."""
FEW_COMMITS: Final = 10
"""Among so many the newest of a round is found: between two rounds files may be joined and removed."""
RESTATE_MS: Final = 7 * 86_400_000
"""How often the gaps are told again: Delta forgets commits after thirty days, and with them what only they tell."""
VACUUM_HOURS: Final = 24
"""Files that no version names, left by rounds that failed, stay this long: another exporter may be about to commit."""

_WORDS: Final = {"long": "bigint", "integer": "int"}
"""Delta's word for a type: that of --shred, where it is another."""


def delta() -> Any:
    try:
        import deltalake
    except ImportError:
        raise InvalidConfig("history tables need deltalake: pip install 'topics[spark,lake]'") from None
    from deltalake import transaction

    if not hasattr(transaction, "RemoveAction"):
        raise InvalidConfig(
            f"deltalake {deltalake.__version__} is too old for history tables: pip install -U 'topics[spark,lake]'"
        )
    return deltalake


def words_of(error: Exception) -> str:
    """What deltalake says, in one line and without colours."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error)).split())


def _is_refusal(error: Exception) -> bool:
    """Whether another exporter was first, and not a disk or a folder in the way."""
    from deltalake.exceptions import TableNotFoundError

    return not isinstance(error, OSError | TableNotFoundError)


def is_table(folder: str, remedy: str = "an object store wants its keys in the environment") -> bool:
    """StorageError if nobody can tell."""
    lake = delta()
    from deltalake.exceptions import DeltaError

    try:
        return bool(lake.DeltaTable.is_deltatable(folder))
    except (DeltaError, OSError) as error:
        raise StorageError(f"the folder {folder} cannot be read ({words_of(error)}): {remedy}", path=folder) from None


def open_table(folder: str) -> DeltaTable:
    """The table at its newest version; StorageError if it cannot be read."""
    from deltalake.exceptions import DeltaError

    try:
        table: DeltaTable = delta().DeltaTable(folder)
    except (DeltaError, OSError) as error:
        raise _unreadable(folder, error) from None
    return table


def _unreadable(folder: str, error: Exception) -> StorageError:
    return StorageError(
        f"the table {folder} cannot be read ({words_of(error)}): restore its folder from a backup, or move it away and "
        "have it written anew",
        path=folder,
    )


def _is_used(folder: str) -> bool:
    """A log without a first commit is a table that somebody is about to make, or died while making it."""
    try:
        return bool(set(os.listdir(folder)) - {"_delta_log"})
    except OSError:
        return False


@dataclass(slots=True)
class History:
    """The table of one topic, loaded at one version."""

    folder: str
    topic: str
    table: DeltaTable | None
    """None: not there yet."""
    made: str | None = None
    """The id of the table, where it was us who made it."""

    @classmethod
    def load(cls, root: str, topic: str) -> History:
        try:
            return cls._loaded(root, topic)
        except StorageError as error:
            try:
                with turn_at(os.path.join(root, topic)):
                    pass  # whoever makes the table or renames it right now is done by then
            except (StorageError, Conflict):
                raise error from None
            return cls._loaded(root, topic)

    @classmethod
    def _loaded(cls, root: str, topic: str) -> History:
        folder = os.path.join(root, topic)
        there = is_table(folder, "name another one with --table")
        if not there and _is_used(folder):
            there = is_table(folder)  # somebody may have made it since
            if not there:
                raise InvalidRequest(f"{folder} is not empty and not a Delta table: name another folder with --table")
        return cls(folder, topic, open_table(folder) if there else None)

    @property
    def owner(self) -> tuple[str, str]:
        """(instance of the topic, its name) that the table was made for."""
        assert self.table is not None
        kept = self.table.metadata().configuration
        return f"{kept.get('topics.store', '?')}-{kept.get('topics.topic_id', '?')}", kept.get("topics.topic", "?")

    def is_of_another_store(self, head: Head) -> bool:
        return self.owner[0].rpartition("-")[0] != head.id.rpartition("-")[0]

    def mark(self, head: Head) -> int:
        """The next seq to export; Conflict if the table belongs to another topic or lies ahead of it."""
        if self.table is None:
            return 1
        owner, name = self.owner
        if "topics.topic" not in self.table.metadata().configuration:
            raise Conflict(f"{self.folder} is a Delta table of something else: name another folder with --table")
        if name != self.topic:
            raise Conflict(f"the table {self.folder} holds topic {name!r}, not {self.topic!r}: name another --table")
        if self.is_of_another_store(head):
            raise Conflict(
                f"the table {self.folder} was written from topic {self.topic!r} of another store "
                f"({owner.rpartition('-')[0]}): name that one's --url or --path, or another --table; `topics pipeline "
                "run` with --recreated new keeps the table aside and starts another"
            )
        if owner != head.id:
            raise Conflict(
                f"topic {self.topic!r} was dropped and made again since its table {self.folder} was written: "
                "`topics pipeline run` with --recreated rebuild replaces the table, with --recreated new keeps it "
                "aside and starts another"
            )
        with self._reading():
            found = self.table.transaction_version(app_id(head.id))
        mark = 1 if found is None else int(found)
        if mark > head.head_seq + 1:
            raise Conflict(
                f"the table {self.folder} ends at seq {mark - 1} but the topic at {head.head_seq}: the data directory "
                "is older than the table (restored from a backup?); `topics pipeline run` with --recreated rebuild "
                "replaces the table, with --recreated new keeps it aside and starts another"
            )
        return mark

    def create(self, head: Head, shreds: tuple[Shred, ...]) -> None:
        """Make the table; Conflict if another exporter does so too. It is read back as it is by then, and what another
        writer has put into it meanwhile is not known to our plan: its version must still be the first."""

        with turn_at(self.folder):
            table = self._created(head, shreds)
            if table.version() != 0:
                raise Conflict(f"the table {self.folder} was changed by somebody else as soon as it was made")
            self.table, self.made = table, str(table.metadata().id)
        self.sync()

    def _created(self, head: Head, shreds: tuple[Shred, ...]) -> DeltaTable:
        from deltalake.exceptions import DeltaError

        lake = delta()
        store, _, topic_id = head.id.rpartition("-")
        try:
            table: DeltaTable = lake.DeltaTable.create(
                self.folder,
                table_schema(shreds),
                mode="error",
                name=self.topic,
                configuration={"topics.store": store, "topics.topic_id": topic_id, "topics.topic": self.topic},
                commit_properties=lake.CommitProperties(max_commit_retries=0),
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            if _is_refusal(error):
                raise Conflict(f"the table {self.folder} was not made, somebody else did so first ({error})") from None
            raise StorageError(f"the table {self.folder} was not made ({words_of(error)})", path=self.folder) from None
        return table

    def sync(self) -> None:
        """What the loaded table says outlasts a power cut; before that nobody may rely on it. StorageError if nobody
        knows."""
        if self.table is not None:
            sync_version(self.folder, self.table.version())

    def check_columns(self, shreds: tuple[Shred, ...]) -> None:
        """Conflict if the table was made with other columns, or with one of them as another type: Delta takes files
        whatever their columns are, and no reader could read the table any more."""
        assert self.table is not None
        found = _types(self.table.schema())
        wanted = _types(delta().Schema.from_arrow(table_schema(shreds)))
        if found.keys() != wanted.keys():
            extra = ", ".join(sorted(found.keys() ^ wanted.keys()))
            raise Conflict(
                f"the table {self.folder} has other typed columns ({extra}): give the same --shred, or rebuild"
            )
        changed = [f"{name} is {found[name]}, not {kind}" for name, kind in wanted.items() if found[name] != kind]
        if changed:
            raise Conflict(
                f"the table {self.folder} has typed columns of other types ({', '.join(changed)}): give the same "
                "--shred, or rebuild"
            )

    def commit(self, head: Head, next_seq: int, files: list[Written], losses: list[Loss]) -> None:
        """Once, and for good; whatever goes wrong ends the round. An error may come after the commit was made (its
        answer was lost, a step that follows it failed), so the table is asked before anybody is told that nothing
        happened."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        assert self.table is not None
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [AddAction(one.path, one.size, {}, now_ms, True, one.stats) for one in files if one.path]
        told: dict[str, Any] = {"topics.next_seq": str(next_seq), "topics.round": uuid.uuid4().hex}
        gaps: list[tuple[int, int, str]] = [(loss.gap_from, loss.gap_to, str(loss.reason)) for loss in losses]
        restated_ms = self._restated_ms()
        if not 0 <= now_ms - restated_ms < RESTATE_MS:
            restated_ms, gaps = now_ms, self.gaps() + gaps
        told["topics.restated"] = str(restated_ms)
        if gaps:
            told["topics.gaps"] = json.dumps(gaps)
        properties = CommitProperties(
            custom_metadata=told, max_commit_retries=0, app_transactions=[Transaction(app_id(head.id), next_seq)]
        )
        version = self.table.version() + 1
        with turn_at(self.folder):
            changed = changed_since(self.folder, self.table)
            if changed is not None:
                raise Conflict(f"the table {self.folder} was not changed, {changed}")
            try:
                self.table.create_write_transaction(
                    actions, mode="append", schema=self.table.schema(), commit_properties=properties
                )
            except Exception as error:
                if not self._holds(told["topics.round"]):
                    changed = changed_since(self.folder, self.table)  # by a writer that takes no turns
                    if changed is not None:
                        raise Conflict(f"the table {self.folder} was not changed, {changed}") from None
                    raise StorageError(
                        f"the table {self.folder} was not changed ({words_of(error)})", path=self.folder
                    ) from None
        sync_version(self.folder, version)

    def _holds(self, round_id: str) -> bool:
        """Whether the commit of that round is in the table; Conflict if the table does not tell."""
        from deltalake.exceptions import DeltaError

        try:
            found = delta().DeltaTable(self.folder).history(RECENT_COMMITS)
        except (DeltaError, OSError) as error:
            raise Conflict(
                f"whether the table {self.folder} was changed is unknown ({error}): the next round starts from its mark"
            ) from None
        return any(entry.get("topics.round") == round_id for entry in found)

    def tidy(self) -> int:
        """Join small files and remove those that no version names; how many files fewer the table has. The records are
        committed by then: where another exporter is at the table too, it is left to a later round. StorageError if a
        file of the table cannot be read."""
        from deltalake.exceptions import DeltaError

        joined, damage = 0, None
        try:
            try:
                joined = self._join()
            except StorageError as error:
                damage = error
            self._vacuum()
        except (DeltaError, OSError, Conflict):  # a file that the other one's tidying took is an OSError
            return joined
        if damage is not None:
            raise damage
        return joined

    def _join(self) -> int:
        """One commit that replaces small files by large ones with the same rows; once, as every commit of ours."""
        from deltalake import CommitProperties
        from deltalake.transaction import AddAction, RemoveAction

        table = delta().DeltaTable(self.folder)
        runs = choose(_files(table))
        if not runs or other_features(table) is not None:
            return 0
        now_ms = int(time.time() * 1000)
        actions: list[Any] = []
        fewer = sum(map(len, runs)) - len(runs)
        version = table.version() + 1
        mark = f"{uuid.uuid4().hex[:12]}-"
        try:
            for run in runs:
                one = self._joined(run, mark)
                actions.append(AddAction(one.path, one.size, {}, now_ms, False, one.stats))
                actions += [RemoveAction(file.path, False, now_ms, file.size, {}) for file in run]
            with turn_at(self.folder):
                changed = changed_since(self.folder, table)
                if changed is not None:
                    raise Conflict(f"small files of the table {self.folder} were not joined, {changed}")
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    commit_properties=CommitProperties(
                        custom_metadata={"topics.joined": str(fewer)}, max_commit_retries=0
                    ),
                )
        except BaseException:
            discard(self.folder, mark)
            raise
        sync_version(self.folder, version)
        return fewer

    def _joined(self, run: list[TableFile], mark: str) -> Written:
        import pyarrow as pa

        try:
            return join(self.folder, run, mark)
        except FileNotFoundError:  # the other one's tidying took it
            raise
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f"small files of the table {self.folder} cannot be joined ({error}); where one of them is damaged, "
                "restore it from a backup or have the table rebuilt",
                path=self.folder,
            ) from None

    def _vacuum(self) -> None:
        """`full`, since files of dead rounds are in no version, not even as removed ones."""
        table = delta().DeltaTable(self.folder)
        table.vacuum(VACUUM_HOURS, dry_run=False, enforce_retention_duration=False, full=True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A loaded table still reads its log, which somebody may have moved away since."""
        from deltalake.exceptions import DeltaError

        assert self.table is not None
        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            changed = changed_since(self.folder, self.table)
            if changed is not None:
                raise Conflict(f"the table {self.folder} cannot be read any more, {changed}") from None
            raise _unreadable(self.folder, error) from None

    def gaps(self) -> list[tuple[int, int, str]]:
        """What was lost before it could be exported, as the commits tell it, some of them again."""
        if self.table is None:
            return []
        with self._reading():
            found = [json.loads(entry["topics.gaps"]) for entry in self.table.history() if "topics.gaps" in entry]
        return sorted({(int(low), int(high), str(why)) for gaps in found for low, high, why in gaps})

    def _restated_ms(self) -> int:
        """When a commit last told all gaps there were, as the newest of ours says; 0 if none says so."""
        assert self.table is not None
        with self._reading():
            commits = self.table.history(FEW_COMMITS)
            return int(next((entry["topics.restated"] for entry in commits if "topics.restated" in entry), 0))

    def numbers(self) -> tuple[int, int, int]:
        """(rows, files, bytes)."""
        if self.table is None:
            return 0, 0, 0
        with self._reading():
            rows, sizes = _column(self.table, "num_records"), _column(self.table, "size_bytes")
        return sum(map(int, rows)), len(sizes), sum(map(int, sizes))


def other_features(table: DeltaTable) -> str | None:
    """What another writer has asked of all who read or write the table, so that its files alone do not tell what is in
    it: rows that only a list beside a file deletes, columns under other names. None: it is as we make it."""
    asked = table.protocol()
    if asked.min_reader_version == 1 and asked.min_writer_version < 7:
        return None
    features = sorted({*(asked.reader_features or ()), *(asked.writer_features or ())})
    return ", ".join(features) or f"reader version {asked.min_reader_version}"


def discard(folder: str, mark: str) -> None:
    """Remove the files with this mark in their names, which a round that failed has left: the sooner the better, as the
    next one writes as much again. None that a version names: an error may come after the commit was made. What cannot
    be removed, or may not be, a vacuum removes later."""
    try:
        found = [name for name in os.listdir(folder) if mark in name]
        named = {os.path.basename(path) for path in paths_of(open_table(folder), folder)} if found else set()
        for name in found:
            if name not in named:
                os.unlink(os.path.join(folder, name))
    except (StorageError, OSError):
        return


def _types(schema: Any) -> dict[str, str]:
    """By column, its type in the words of --shred."""
    return {field.name: _WORDS.get(str(field.type.type), str(field.type.type)) for field in schema.fields}


def _column(table: DeltaTable, name: str) -> list[Any]:
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True))
    values: list[Any] = found.column(name).to_pylist() if name in found.column_names else [None] * found.num_rows
    return values


def paths_of(table: DeltaTable, folder: str) -> list[str]:
    """The table's files as the file system knows them; `file_uris` writes a space as %20."""
    return [os.path.join(os.path.abspath(folder), path) for path in _column(table, "path")]


def _files(table: DeltaTable) -> list[TableFile]:
    names = ("path", "size_bytes", "min.seq", "max.seq")
    return [TableFile(*row) for row in zip(*(_column(table, name) for name in names), strict=True)]


def app_id(instance: str) -> str:
    return f"topics:{instance}"
