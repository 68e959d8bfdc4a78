"""`topics serve` and `topics config`: the server, and what it would run with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

from cyclopts import Parameter

from topics.cli.flags import reference_page, with_settings
from topics.cli.output import Output, writing
from topics.config import Config, load

_FILE = (
    Annotated[
        str | None, Parameter(help="TOML file with settings. [env: TOPICS_CONFIG] [default: ./topics.toml if there]")
    ],
    None,
)

SERVE_EXAMPLES = """Examples:

    topics serve
    topics serve --port 0 --port-file ./port
    topics serve --data-dir /var/lib/topics --wal-shards 2
    TOPICS_API_KEYS='long-secret:read+write' topics serve --host 0.0.0.0
"""

CONFIG_EXAMPLES = """Examples:

    topics config
    TOPICS_PORT=5000 topics config --json
    topics config --config ./topics.toml --wal-shards 4
"""


def _loaded(values: dict[str, Any]) -> Config:
    file = values.pop("config", None)
    return load({key: value for key, value in values.items() if value is not None}, file=file)


def _serve(**values: Any) -> int:
    """Run the server until it is told to stop (SIGINT, SIGTERM)."""
    config = _loaded(values)
    config.check_bind()
    # Loaded here: no other command needs the server, its event loop or its HTTP parsers.
    status = import_module("topics.server").run(config)
    return int(status or 0)


def _config(**values: Any) -> int:
    """Print every setting with its value and its origin. Keys are counted, never shown."""
    if values.pop("reference", False):
        with writing():
            sys.stdout.write(reference_page())
            sys.stdout.flush()
        return 0
    output = Output(json=values.pop("json", False))
    config = _loaded(values)
    rows = [
        {
            "key": f"{value.setting.section}.{value.setting.key}",
            "value": value.shown,
            "origin": value.origin,
            "variable": value.setting.variable,
        }
        for value in config.values
    ]
    output.rows(("key", "value", "origin"), rows, "no settings")
    for warning in config.warnings:
        output.note(f"warning: {warning}")
    return 0


def serve_command(described: bool) -> Callable[..., int]:
    return with_settings(_serve, {"config": _FILE}, described=described)


def config_command(described: bool) -> Callable[..., int]:
    own = {
        "config": _FILE,
        "json": (Annotated[bool, Parameter(negative=(), help="One JSON object a line.")], False),
        "reference": (Annotated[bool, Parameter(negative=(), help="Print the reference page instead.")], False),
    }
    return with_settings(_config, own, described=described)
