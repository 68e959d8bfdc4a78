"""`topics import`: take over a directory of the Rust program, or say first what that would find."""

from __future__ import annotations

from dataclasses import replace
from os.path import abspath
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from topics.cli.output import Output
from topics.config import load
from topics.host.clock import SteadyClock, SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.rules.steady import Steady
from topics.storage.opening import import_store

EXAMPLES: Final = """Examples:

    topics import --data-dir /var/lib/topics --check
    topics import --data-dir /var/lib/topics
    topics import --data-dir /var/lib/topics --check --json
"""


def import_directory(
    *,
    config: str | None = None,
    data_dir: str | None = None,
    check: Annotated[bool, Parameter(negative=())] = False,
    salvage: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Take over a directory of the Rust program, once and for all. `topics serve` does the same when it opens one.

    Parameters
    ----------
    config
        TOML file with settings, as for `topics serve`.
    data_dir
        Data directory, if not the configured one.
    check
        Only read, and say what an import would find.
    salvage
        Read past damage instead of refusing it.
    json
        Print the whole report as one JSON object.
    """
    output = Output(json=json)
    given: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    settings = load(given, file=config)
    options = replace(settings.store, recovery="salvage") if salvage else settings.store

    def tell(part: float) -> None:
        output.progress(int(100 * part), "% read" if check else "% imported")

    try:
        clock = SteadyClock(SystemClock(), Steady())
        report = import_store(OsFs(), abspath(settings.server.data_dir), options, clock, SystemIds(), check, tell)
    finally:
        output.progress_over()
    values = msgspec.to_builtins(report)
    if json:
        output.fields(values)
        return 0
    shown = {name: values[name] for name in ("topics", "records", "bytes", "routers", "frames")}
    output.fields({"source": report.source or "the WAL alone", **shown})
    for line in report.finding_lines():
        output.note(line)
    for name in report.set_aside:
        output.note(f"set aside: quarantine/{name}")
    return 0
