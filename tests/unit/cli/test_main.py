"""Help, version, usage errors, settings and the doctor."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from tests.unit.cli.conftest import Command
from topics.cli import doctor, flags
from topics.cli.main import COMMANDS as KNOWN
from topics.cli.main import FAMILIES, make_app, run
from topics.cli.output import visible
from topics.config import settings
from topics.host.version import own_version
from topics.model.errors import CorruptFile, StoreLocked, Throttled, TopicsError, Unauthorized

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = (
    "serve", "config", "topics", "create", "append", "read", "watch", "info", "delete", "drop", "claim", "ack",
    "nack", "redrive", "group", "top", "dump", "import", "doctor", "pipeline",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(topics: Command, command: str) -> None:
    ran = topics(command, "--help")
    assert ran.status == 0
    assert f"topics {command}" in ran.out
    assert "Examples:" in ran.out
    assert ran.out.count(f"    topics {command}") >= 1


def commands_of(app: App) -> Iterator[App]:
    """The app's commands, and those of its families."""
    for name in app:
        if not name.startswith("-"):
            yield app[name]
            yield from commands_of(app[name])


def test_help_says_one_line_about_every_argument() -> None:
    for command in (one for one in commands_of(make_app(["--help"])) if one.default_command is not None):
        for argument in command.assemble_argument_collection(parse_docstring=True):
            if argument.show and not argument.children:
                told = argument.parameter.help or ""
                assert told, (command.name, argument.name)
                assert "\n" not in told, (command.name, argument.name)


def test_no_command_is_left_out_of_these_tests() -> None:
    assert {*KNOWN, *FAMILIES} == set(COMMANDS)
    assert {name for name in make_app() if not name.startswith("-")} == set(COMMANDS)


def test_only_the_named_command_is_loaded() -> None:
    assert [name for name in make_app(["info", "a"]) if not name.startswith("-")] == ["info"]


def test_version_is_the_installed_one(topics: Command) -> None:
    assert topics("--version").out.strip() == own_version()


def test_bare_command_shows_where_to_begin(topics: Command) -> None:
    ran = topics()
    assert ran.status == 0
    assert "topics serve" in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "nope"),
        (["serve", "--prot", "1"], "--port"),
        (["info"], "topic"),
        (["read", "a", "--limit", "many"], "many"),
        (["read", "a", "b"], "'b' is one argument too many. `topics read --help`"),
        (["config", "--port", "x"], "whole number"),
        (["config", "--wal-shards", "0"], "from 1 to 64"),
        (["config", "--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_wrong_usage_is_said_with_status_two(topics: Command, arguments: list[str], told: str) -> None:
    ran = topics(*arguments)
    assert ran.status == 2
    assert told in ran.err
    assert not ran.out


def test_secret_on_the_command_line_is_refused_unseen(topics: Command) -> None:
    ran = topics("serve", "--api-keys", "hush-hush")
    assert ran.status == 2
    assert "hush-hush" not in ran.err


def test_config_prints_value_and_origin(topics: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICS_API_KEYS", "hush:r")
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "many")
    (tmp_path / "topics.toml").write_text("[server]\nhost = '127.0.0.2'\n")
    ran = topics("config", "--json", "--port", "5", "--probe-auth")
    found = {row["key"]: (row["value"], row["origin"]) for row in ran.lines}
    assert found["server.port"] == (5, "flag --port")
    assert found["server.host"] == ("127.0.0.2", "file topics.toml")
    assert found["security.probe_auth"] == (True, "flag --probe-auth")
    assert found["security.api_keys"] == ("1 key(s)", "environment TOPICS_API_KEYS")
    assert found["storage.max_topics"] == (100_000, "default")
    assert len(found) == len(settings())
    assert "TOPICS_MAX_TOPICS" in ran.err
    assert "hush" not in ran.out + ran.err + topics("config").out


def test_reference_page_is_the_one_that_is_printed(topics: Command) -> None:
    page = (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    assert page == topics("config", "--reference").out, "topics config --reference > docs/reference/config.md"


def test_every_setting_is_described() -> None:
    for setting in settings().values():
        assert len(flags.said_of(setting)) > 10


class Server(types.ModuleType):
    """Stands where `topics.server` is: tells what it was asked to run."""

    def __init__(self, status: int | None = None, error: BaseException | None = None) -> None:
        super().__init__("topics.server")
        self.asked: list[Any] = []
        self._status = status
        self._error = error

    def run(self, config: Any) -> int | None:
        self.asked.append(config)
        if self._error:
            raise self._error
        return self._status


def test_serve_runs_the_server_with_the_settings(topics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "topics.server", server)
    ran = topics("serve", "--port", "0", "--data-dir", "here", "--no-probe-auth")
    assert ran.status == 0
    (config,) = server.asked
    assert (config.server.port, config.server.data_dir, config.security.probe_auth) == (0, "here", False)


def test_serve_beyond_loopback_without_keys_is_refused(topics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "topics.server", server)
    ran = topics("serve", "--host", "0.0.0.0")
    assert ran.status == 2
    assert "TOPICS_API_KEYS" in ran.err
    assert not server.asked


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreLocked("held by another"), 1),
        (Throttled("later"), 3),
        (CorruptFile("seg", 7, "rotten"), 4),
        (TopicsError("a fault"), 1),
    ],
)
def test_errors_of_the_server_become_messages(
    topics: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setitem(sys.modules, "topics.server", Server(error=error))
    ran = topics("serve")
    assert ran.status == status
    assert str(error) in ran.err


def test_key_that_is_missing_or_wrong_is_told_with_the_place_where_it_is_taken_from(
    topics: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "topics.server", Server(error=Unauthorized("a known key is needed")))
    ran = topics("serve")
    assert (ran.status, ran.err) == (
        1,
        "error: a known key is needed. The variable TOPICS_TOKEN is where it is taken from\n",
    )


def test_interrupt_is_no_error_message(topics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "topics.server", Server(error=KeyboardInterrupt()))
    ran = topics("serve")
    assert (ran.status, ran.err) == (130, "")


def test_status_of_the_server_is_ours(topics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "topics.server", Server(status=7))
    assert topics("serve").status == 7


def test_reader_that_leaves_early_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "topics.server", Server(error=BrokenPipeError()))
    monkeypatch.setattr("sys.stdout", sys.stdout)
    assert run(["serve"]) == 0


def test_doctor_finds_a_fit_machine(topics: Command, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ran = topics("doctor", "--data-dir", str(tmp_path), "--json")
    found = {row["check"]: row for row in ran.lines}
    assert ran.status == 0
    assert found["kernel"]["found"]
    assert found["data directory"]["verdict"] == "ok"
    assert "GiB" in found["free space"]["found"]
    assert "permissions" not in found
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_what_is_wrong_and_the_remedy(topics: Command, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ran = topics("doctor", "--data-dir", str(file))
    assert ran.status == 1
    assert "not a directory" in ran.out
    assert topics("doctor", "--config", str(tmp_path / "none.toml")).status == 1
    tmp_path.chmod(0o755)
    (row,) = [
        row for row in topics("doctor", "--data-dir", str(tmp_path), "--json").lines if row["check"] == "permissions"
    ]
    assert "chmod 700" in row["remedy"]


def test_doctor_sees_a_directory_in_use(topics: Command, tmp_path: Path) -> None:
    import topics as package

    with package.open(tmp_path / "data"):
        ran = topics("doctor", "--data-dir", str(tmp_path / "data"), "--json")
        assert [row["found"] for row in ran.lines if row["check"] == "in use"] == ["a process holds the directory"]
    ran = topics("doctor", "--data-dir", str(tmp_path / "data"), "--json")
    assert [row["found"] for row in ran.lines if row["check"] == "in use"] == ["no"]


def test_doctor_judges_kernel_limits_and_assertions() -> None:
    assert doctor.kernel(False).verdict == "warning"
    assert doctor.open_files(1024).verdict == "warning"
    assert doctor.open_files(-1).verdict == "ok"
    assert doctor.assertions(1).verdict == "error"


def test_control_characters_are_shown_not_obeyed() -> None:
    assert visible("a\x1b[31mb\x07\r\nc\u202ed\x9b") == "a\\x1b[31mb\\x07\\r\\nc\\u202ed\\x9b"
    assert visible("Grüße, 世界") == "Grüße, 世界"


def test_package_can_be_run_by_its_name() -> None:
    ran = subprocess.run([sys.executable, "-m", "topics", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == own_version()
