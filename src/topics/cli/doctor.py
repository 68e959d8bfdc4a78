"""`topics doctor`: is this machine fit to run the server, and what would make it fitter."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from topics.cli.output import Output
from topics.config import Config, load
from topics.format.ops import KERNEL
from topics.host.fs import OsFs
from topics.model.errors import TopicsError
from topics.storage.paths import Paths

EXAMPLES: Final = """Examples:

    topics doctor
    topics doctor --data-dir /var/lib/topics --json
"""

FREE_BYTES_MIN: Final = 1 << 30
"""Less free space than this is a warning: WAL files of 64 MiB are made ahead, two of them per shard."""
OPEN_FILES_MIN: Final = 4096
"""A server holds a socket per client beside its files."""

LIBRARIES: Final = ("msgspec", "numpy", "pyarrow", "xxhash", "uvloop", "httptools", "h2", "websockets", "urllib3")

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    check: str
    found: str
    remedy: str = ""


def doctor(
    *,
    config: str | None = None,
    data_dir: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Look at this machine, its settings and the data directory; change nothing.

    Parameters
    ----------
    config
        TOML file with settings, as for `topics serve`.
    data_dir
        Data directory, if not the configured one.
    json
        Print JSON, one object a line.
    """
    output = Output(json=json)
    findings = list(examine(config, data_dir))
    rows = [{"verdict": one.verdict, "check": one.check, "found": one.found, "remedy": one.remedy} for one in findings]
    output.rows(("verdict", "check", "found", "remedy"), rows, "nothing to look at")
    return 1 if any(one.verdict == "error" for one in findings) else 0


def examine(file: str | None, data_dir: str | None) -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    yield kernel(KERNEL)
    yield Finding("ok", "libraries", ", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    yield assertions(sys.flags.optimize)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        config = load({} if data_dir is None else {"data_dir": data_dir}, file=file)
    except TopicsError as error:
        yield Finding("error", "configuration", error.message, "correct it; `topics config` shows the rest")
        return
    yield from configuration(config)
    yield from directory(config.server.data_dir)


def kernel(built: bool) -> Finding:
    if built:
        return Finding("ok", "kernel", "compiled")
    return Finding(
        "warning", "kernel", "the slower Python reference", "install a C compiler, then `make install` again"
    )


def assertions(optimize: int) -> Finding:
    if not optimize:
        return Finding("ok", "assertions", "on")
    return Finding("error", "assertions", "off", "run without -O and PYTHONOPTIMIZE: the server's own checks need them")


def open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES_MIN:
        return Finding("ok", "open files", "no limit" if limit == resource.RLIM_INFINITY else f"up to {limit}")
    return Finding("warning", "open files", f"up to {limit}", f"raise it for many clients: ulimit -n {OPEN_FILES_MIN}")


def configuration(config: Config) -> Iterator[Finding]:
    yield Finding("ok", "configuration", config.file or "no file; environment and defaults")
    for warning in config.warnings:
        yield Finding("warning", "configuration", warning)
    host, port = config.server.address
    try:
        config.check_bind()
        keys = "keys are set" if config.security.api_keys.on else "no keys"
        yield Finding("ok", "address", f"{host}:{port}, {keys}")
    except TopicsError as error:
        yield Finding("error", "address", error.message)


def directory(path: str) -> Iterator[Finding]:
    there = os.path.isdir(path)
    nearest = os.path.abspath(path)
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    if os.path.exists(path) and not there:
        yield Finding("error", "data directory", f"{path} is not a directory", "name another with --data-dir")
        return
    if not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("error", "data directory", f"{nearest} is not writable", "change its owner, or name another")
    else:
        yield Finding("ok", "data directory", path if there else f"{path}, to be made in {nearest}")
    free = shutil.disk_usage(nearest).free
    told = f"{free / (1 << 30):.1f} GiB"
    if free < FREE_BYTES_MIN:
        yield Finding("warning", "free space", told, "free some, or name a directory on another disk")
    else:
        yield Finding("ok", "free space", told)
    if there and (mode := os.stat(path).st_mode & 0o777) & 0o077:
        yield Finding("warning", "permissions", f"{path} has mode {mode:o}", f"keep others out: chmod 700 {path}")
    if there and os.path.exists(Paths(path).lock):
        yield in_use(path)


def in_use(path: str) -> Finding:
    try:
        OsFs().lock(Paths(path).lock).release()
    except BlockingIOError:
        return Finding("ok", "in use", "a process holds the directory")
    except OSError as error:
        return Finding("error", "in use", f"the lock cannot be tried: {error.strerror}")
    return Finding("ok", "in use", "no")
