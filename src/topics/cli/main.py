"""The `topics` command: its commands, and how an error becomes a message and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Final

from cyclopts import App, CycloptsError, UnusedCliTokensError

from topics.cli.exits import DAMAGED, FAILED, INTERRUPTED, LATER, USAGE, WrongUsage
from topics.cli.output import Output, OutputLost, Printer
from topics.host.streams import fill_streams
from topics.host.version import own_version
from topics.model.errors import CorruptFile, InvalidConfig, TopicsError, Unauthorized, Unavailable, Unreachable

EPILOGUE: Final = """Start here:

    topics serve
    topics append orders '{"id": 1}'
    topics read orders

Exit status:

    0 done                     3 not reachable or not now: try again
    1 refused or failed        4 a file is damaged
    2 wrong usage or settings  130 interrupted, 143 told to end
"""


Loaded = tuple[Callable[..., int], str]
"""A command, and the examples for its help."""


def _serve(described: bool) -> Loaded:
    from topics.cli import serve

    return serve.serve_command(described), serve.SERVE_EXAMPLES


def _config(described: bool) -> Loaded:
    from topics.cli import serve

    return serve.config_command(described), serve.CONFIG_EXAMPLES


def _remote(name: str) -> Callable[[bool], Loaded]:
    def load(described: bool) -> Loaded:
        from topics.cli import remote

        return remote.COMMANDS[name]

    return load


def _queue(name: str) -> Callable[[bool], Loaded]:
    def load(described: bool) -> Loaded:
        from topics.cli import queues

        return queues.COMMANDS[name]

    return load


def _top(described: bool) -> Loaded:
    from topics.cli import top

    return top.top, top.EXAMPLES


def _group(described: bool) -> Loaded:
    from topics.cli import group

    return group.group, group.EXAMPLES


def _dump(described: bool) -> Loaded:
    from topics.cli import dump

    return dump.dump, dump.EXAMPLES


def _import(described: bool) -> Loaded:
    from topics.cli import importing

    return importing.import_directory, importing.EXAMPLES


def _doctor(described: bool) -> Loaded:
    from topics.cli import doctor

    return doctor.doctor, doctor.EXAMPLES


COMMANDS: Final[dict[str, Callable[[bool], Loaded]]] = {
    "serve": _serve,
    "config": _config,
    **{name: _remote(name) for name in ("topics", "create", "append", "read", "watch", "info", "delete", "drop")},
    **{name: _queue(name) for name in ("claim", "ack", "nack", "redrive")},
    "group": _group,
    "top": _top,
    "dump": _dump,
    "import": _import,
    "doctor": _doctor,
}


def _pipeline() -> App:
    from topics.cli import pipeline

    return pipeline.make_app()


SALVAGE: Final = {
    "serve": ". Copy the directory, then `topics serve --recovery salvage` sets the damaged part aside and reports it",
    "import": ". `topics import --salvage` reads past it and reports it",
}
"""What somebody can do about a damaged file, by command."""

UNREACHED: Final = "`topics serve` starts a server, --url names another one"
UNTRUSTED: Final = "The variable SSL_CERT_FILE names the PEM file of another authority to trust"

FAMILIES: Final[dict[str, Callable[[], App]]] = {"pipeline": _pipeline}
"""Commands that have commands of their own."""


def make_app(arguments: Sequence[str] = ()) -> App:
    """The command line for these arguments. Only the named command is loaded; all of them where none is named."""
    app = App(
        name="topics",
        help="A durable event log: one process, one directory, nothing acknowledged is lost.",
        version=own_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        help_epilogue=EPILOGUE,
        console=Printer(),
    )
    named = [name for name in arguments[:1] if name in COMMANDS or name in FAMILIES]
    described = not {"--help", "-h"}.isdisjoint(arguments)
    for name in named or FAMILIES:
        if name in FAMILIES:
            app.command(FAMILIES[name]())
    for name in named or COMMANDS:
        if name not in COMMANDS:
            continue
        command, examples = COMMANDS[name](described)
        app.command(command, name=name, help_epilogue=examples)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status."""
    output = Output(json="--json" in arguments)
    try:
        status = make_app(arguments)(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        return status if isinstance(status, int) else 0
    except (CycloptsError, WrongUsage) as error:
        output.failed("usage", f"{_told(error)} {_help_for(arguments)}")
        return USAGE
    except InvalidConfig as error:
        output.failed(error.code, error.message)
        return USAGE
    except Unreachable as error:
        remedy = UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in error.message else UNREACHED
        output.failed(error.code, f"{error.message}. {remedy}")
        return LATER
    except CorruptFile as error:
        output.failed(error.code, error.message + SALVAGE.get(arguments[0], ""))
        return DAMAGED
    except Unauthorized as error:
        output.failed(error.code, f"{error.message}. The variable TOPICS_TOKEN is where it is taken from")
        return FAILED
    except TopicsError as error:
        output.failed(error.code, error.message)
        return LATER if isinstance(error, Unavailable) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. The stream is detached, so that the interpreter does not try again.
        sys.stdout = None
        return 0
    except OutputLost as error:
        sys.stdout = None
        output.failed("output", str(error))
        return FAILED


def _told(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is one argument too many."
    return str(error) if str(error).endswith((".", "?")) else f"{error}."


def _help_for(arguments: Sequence[str]) -> str:
    if arguments and (arguments[0] in COMMANDS or arguments[0] in FAMILIES):
        return f"`topics {arguments[0]} --help` says more."
    return "`topics --help` lists the commands."


def main() -> None:
    fill_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal does not have is shown in ASCII; a command does not end in its middle over it.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
