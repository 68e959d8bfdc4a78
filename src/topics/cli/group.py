"""`topics group`: make, look at, work in and export the consumer groups of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.exits import WrongUsage
from topics.cli.groupfile import lines_of
from topics.cli.remote import LOCAL, Server, as_json, as_text, assigned
from topics.client import Client
from topics.client.groups import Group
from topics.model.group import GroupConfig

FIELDS: Final = frozenset({*GroupConfig.__struct_fields__, "start"})

Action = Literal["create", "list", "info", "fetch", "ack", "seek", "delete", "export"]

EXAMPLES: Final = (
    "Examples:\n\n    topics group create orders billing visibility_ms=60000 max_deliveries=5\n"
    "    topics group list orders\n    topics group info orders billing\n"
    "    topics group fetch orders billing --member me --max 10\n"
    "    topics group ack orders billing 1 2 10-20 --member me\n"
    "    topics group seek orders billing earliest --force\n    topics group seek orders billing 1000 --dry-run\n"
    "    topics group export orders billing --json\n"
    "    topics group export orders billing --directory topics-data --json\n"
)


def group(
    action: Action,
    topic: str,
    name: str | None = None,
    *arguments: str,
    member: str = "cli",
    max: int = 100,
    force: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    directory: str | None = None,
    server: Server = LOCAL,
) -> int:
    """Consumer groups of a topic.

    Parameters
    ----------
    action
        What to do: create takes FIELD=VALUE …, ack seqs and ranges, seek a place: earliest, latest, a seq or ts=MS.
    topic
        The topic.
    name
        The group; not for `list`.
    arguments
        What the action takes.
    member
        Who fetches and acks.
    max
        How many records to fetch at most.
    force
        Seek though the group has members.
    dry_run
        Say what a seek would do.
    directory
        Export from the files of this data directory: the state of the last snapshot, and each op since.
    """
    output = server.output()
    if action == "export" and directory is not None and name is not None:
        for line in lines_of(directory, topic, name):
            output.line(line, "  ".join(f"{key}={value}" for key, value in line.items()))
        return 0
    with server.client() as client:
        if action == "list":
            rows = (_row(msgspec.to_builtins(found)) for found in client.groups(topic))
            output.rows(("group", "mode", "cursor", "committed", "lag", "pending", "members"), rows, "no groups")
            return 0
        if name is None:
            raise WrongUsage(f"`topics group {action}` needs the name of a group behind that of its topic")
        found = client.group(topic, name)
        if action == "fetch":
            return _fetch(found, server, member, max)
        if action == "export":
            return _export(client, found, server, topic, name)
        acts: dict[str, Callable[[], Any]] = {
            "create": lambda: found.create(**dict(assigned(field, FIELDS) for field in arguments)),
            "info": found.info,
            "ack": lambda: _ack(found, member, arguments),
            "seek": lambda: found.seek(_place(arguments), force=force, dry_run=dry_run),
            "delete": found.drop,
        }
        output.fields(msgspec.to_builtins(acts[action](), str_keys=True))
    return 0


def _row(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "lag": state["lag"]["records"], "members": len(state["members"])}


def _fetch(found: Group, server: Server, member: str, most: int) -> int:
    output = server.output()
    fetched = found.fetch(member, max=most)
    if fetched.gap is not None:
        output.note(f"records {fetched.gap.gap_from} to {fetched.gap.gap_to} were lost ({fetched.gap.reason})")
    for item in fetched.records:
        values = as_json(item.record)
        if item.delivery is not None:
            values["delivery"] = msgspec.to_builtins(item.delivery)
        output.line(values, as_text(item.record))
    return 0


def _ack(found: Group, member: str, arguments: tuple[str, ...]) -> Any:
    seqs: list[int] = []
    ranges: list[tuple[int, int]] = []
    for text in arguments:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise WrongUsage(f"{text!r} is neither a seq nor a range such as 10-20")
        if dash:
            ranges.append((int(first), int(last)))
        else:
            seqs.append(int(first))
    return found.ack(member, seqs, ranges=ranges)


def _place(arguments: tuple[str, ...]) -> Any:
    (text,) = arguments if len(arguments) == 1 else ("",)
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return {"seq": int(text)}
    if text.startswith("ts=") and text[3:].isdecimal():
        return {"ts": int(text[3:])}
    raise WrongUsage("seek to `earliest`, `latest`, a seq, or `ts=` and a time in ms")


def _export(client: Client, found: Group, server: Server, topic: str, name: str) -> int:
    """The state, then each pending record: what a file view of the group would hold."""
    output = server.output()
    state = {"kind": "state", "topic": topic, **msgspec.to_builtins(found.info())}
    output.line(state, f"state {name}: cursor {state['cursor']}, committed {state['committed']}")
    for row in found.pending(limit=1000):
        values = {"kind": "pending", **msgspec.to_builtins(row)}
        output.line(values, f"pending {row.seq}: {row.member}, handed out {row.count} times")
    return 0
