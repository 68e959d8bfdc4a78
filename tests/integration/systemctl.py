"""Stands in for systemd in the pages for operators: `systemctl start|stop|restart|reload|kill topics`.

It starts what `ExecStart` of the unit says, with the unit's environment. Restarts and sandboxes are not its business.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

UNITS = Path(os.environ["UNITS"])
PID = UNITS / "pid"
LOG = UNITS / "journal"


def running() -> int | None:
    if not PID.exists():
        return None
    pid = int(PID.read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state == "Z" else pid


def start() -> None:
    if running() is not None:
        return
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    command: list[str] = []
    for line in (UNITS / "topics.service").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "EnvironmentFile":
            lines = Path(value).read_text().splitlines()
            environ |= dict(one.split("=", 1) for one in lines if not one.startswith("#"))
        elif name == "ExecStart":
            command = shlex.split(value)
    with LOG.open("ab") as log:
        PID.write_text(str(subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True).pid))


def tell(number: signal.Signals, gone: bool) -> None:
    pid = running()
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    while gone and running() is not None:
        time.sleep(0.02)


def main(verb: str, *more: str) -> int:
    if verb == "kill":
        tell(signal.Signals[f"SIG{more[0].removeprefix('--signal=')}"], gone=False)
    if verb in ("stop", "restart"):
        tell(signal.SIGTERM, gone=True)
    if verb in ("start", "restart", "enable"):
        start()
    if verb == "reload":
        tell(signal.SIGHUP, gone=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
