"""The settings of the server as flags: one per setting, made from the parts' options, so that none is forgotten."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from cyclopts import Group, Parameter

from topics.config import PARTS, Setting, settings


@cache
def field_docs(part: type) -> dict[str, str]:
    """The text below each field of a class. It is not kept at run time, so it is read from the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, text in itertools.pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                docs[name] = " ".join(said.split())
    return docs


def said_of(setting: Setting) -> str:
    return field_docs(PARTS[setting.section])[setting.key]


def default_of(setting: Setting) -> str:
    """The default in words that hold on every machine."""
    if setting.key == "wal_shards":
        return "the number of processors, at most 8"
    if setting.default is None or setting.default == ():
        return "unset"
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return str(setting.default) if isinstance(setting.default, int | str) else "no keys"


def with_settings(command: Callable[..., int], own: dict[str, Any], *, described: bool) -> Callable[..., int]:
    """Give `command(**values)` the flags of `own` (name -> annotation and default) and one for every setting.

    Without `described` they have no help text: reading it from the source would slow down every start of the server.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in own.items()
    ]
    for setting in settings().values():
        if setting.flag is None:
            continue
        about = Parameter(
            name=setting.flag,
            help=_help(setting) if described else "",
            group=Group(setting.section.capitalize(), sort_key=list(PARTS).index(setting.section) + 1),
            show_default=False,
            metavar="N" if setting.kind is int else "TEXT",
        )
        # Numbers are taken as text: `load` reads them, and words the refusal the same for every source.
        annotation: Any = Annotated[bool | None, about] if setting.kind is bool else Annotated[str | None, about]
        parameters.append(inspect.Parameter(setting.key, kind, default=None, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _help(setting: Setting) -> str:
    return f"{said_of(setting)} [env: {setting.variable}] [default: {default_of(setting)}]"


def reference_page() -> str:
    """docs/reference/config.md."""
    lines = [
        "# Configuration",
        "",
        "This page is made by `topics config --reference`; a test compares the two.",
        "",
        "A value comes from the first of these that gives it: a flag (`--data-dir`), the environment",
        "(`TOPICS_DATA_DIR`), a TOML file (`--config`, else `TOPICS_CONFIG`, else `./topics.toml`), the default.",
        "`topics config` prints every value and where it came from.",
        "",
        "An unknown key or flag and a value out of bounds stop the start. An environment variable whose number cannot",
        "be read keeps the default, with a warning; so does an unknown `TOPICS_` variable, which has no effect.",
        "",
        "```toml",
        "[server]",
        'data_dir = "/var/lib/topics"',
        "",
        "[security]",
        'api_keys = ["a-long-random-secret:read+write:orders.|events."]',
        "",
        "[storage]",
        "wal_shards = 2",
        "```",
    ]
    for section in PARTS:
        lines += ["", f"## [{section}]", "", "| key | default | meaning |", "|---|---|---|"]
        for setting in settings().values():
            if setting.section == section:
                lines.append(
                    f"| `{setting.key}` | {default_of(setting)} | {said_of(setting).replace('|', chr(92) + '|')} |"
                )
    lines += [
        "",
        "`api_keys` has no flag: the arguments of a process are visible to every user of the machine. An entry is",
        "`secret[:scopes[:prefixes]]`: scopes of `read`, `write`, `delete`, `admin` joined by `+` (none = all),",
        "prefixes of names joined by `|` (none = every name). Without keys there is no authentication, and the server",
        "refuses to listen beyond loopback.",
    ]
    return "\n".join(lines) + "\n"
