"""`topics top`: how fast the topics of a server grow, now and then again."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from topics.cli.exits import WrongUsage
from topics.cli.output import make_console, visible
from topics.cli.remote import LOCAL, Server

EXAMPLES: Final = """Examples:

    topics top
    topics top orders. --interval 5
    topics top --once --json
"""

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def top(
    prefix: str | None = None,
    *,
    interval: float = 1.0,
    limit: int = 20,
    once: Annotated[bool, Parameter(negative=())] = False,
    server: Server = LOCAL,
) -> int:
    """Show the busiest topics of a server until interrupted.

    Parameters
    ----------
    prefix
        Only names that begin with this.
    interval
        Seconds between two looks.
    limit
        Topics that are shown.
    once
        Look for one interval, print and end.
    """
    if not 0.1 <= interval <= 3600:
        raise WrongUsage(f"--interval is {interval}; it must lie in 0.1..3600 seconds")
    output = server.output()
    with server.client() as client:
        if once:
            # Rates need two looks; a server that somebody watches already knows them at the first.
            seen = client.stats(prefix, limit)
            if not seen["watched_ms"]:
                time.sleep(interval)
                seen = client.stats(prefix, limit)
            if server.json:
                output.line(seen, "")
            else:
                make_console(stderr=False).print(screen(seen))
            return 0
        if server.json:
            while True:
                output.line(client.stats(prefix, limit), "")
                time.sleep(interval)
        console = make_console(stderr=False)
        if not console.is_terminal:  # nobody whose screen could be painted over: one look below the other
            while True:
                console.print(screen(client.stats(prefix, limit)))
                time.sleep(interval)
        with Live(screen(client.stats(prefix, limit)), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                live.update(screen(client.stats(prefix, limit)), refresh=True)


def screen(seen: dict[str, Any]) -> Group:
    """One look: a line about the whole, and a table of the topics."""
    title = (
        f"{seen['topics']} topics · {_count(seen['records_live'])} records · {_size(seen['bytes_live'])} · "
        f"{_rate(seen['records_per_s']['10s'])} records/s · append {_quantiles(seen['append_ms'])} · "
        f"sync {_quantiles(seen['sync_ms'])} · pressure {seen['pressure']:.2f} · {seen['connections']} connections"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic")
    for column in ("1 s", "10 s", "60 s", "head", "records", "bytes", "segments", "groups", "lag"):
        table.add_column(column, justify="right")
    for row in seen["by_topic"]:
        rates = row["records_per_s"]
        table.add_row(
            Text(visible(row["topic"])),
            *(Text(_rate(rates[window])) for window in ("1s", "10s", "60s")),
            Text(str(row["head_seq"])),
            Text(_count(row["count"])),
            Text(_size(row["bytes"])),
            Text(str(row["segments"])),
            Text(str(row["groups"])),
            Text(_behind(row["behind"])),
        )
    return Group(Text(title), table)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _behind(found: dict[str, Any] | None) -> str:
    """The lag of the group that is furthest behind, and its name where there is a lag."""
    if found is None:
        return "–"
    return f"{found['lag']:,} {visible(found['group'])}" if found["lag"] else "0"


def _count(value: int) -> str:
    return f"{value:,}"


def _size(value: float) -> str:
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def _quantiles(found: dict[str, float | None]) -> str:
    """p50/p99."""
    return "/".join("–" if value is None else f"{value:g}" for value in found.values()) + " ms"
