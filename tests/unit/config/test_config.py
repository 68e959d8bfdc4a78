"""Where a value comes from, and what a bad one is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topics.api.settings import ServerOptions, split_address
from topics.config import PARTS, Config, Value, default_shards, load, settings
from topics.model.errors import InvalidConfig

CONTRACT = """
    HOST PORT PORT_FILE API_KEYS ALLOW_INSECURE_NO_AUTH PROBE_AUTH DATA_DIR COLD_DIR WAL_SHARDS SEGMENT_MAX_EVENTS
    SEGMENT_MAX_BYTES SEGMENT_MAX_AGE_MS HOT_RETAIN_SEGMENTS HOT_RETAIN_BYTES MAX_BODY_BYTES MAX_TOPICS MAX_ROUTERS
    MAX_WATCH_SESSIONS MAX_SSE_CONNECTIONS MAX_SSE_CONNECTIONS_PER_KEY MAX_INFLIGHT_PER_KEY MAX_TOTAL_BYTES
    TEST_MIN_HEARTBEAT_MS RECOVERY TLS_CERT TLS_KEY ALLOWED_HOSTS SHOW_PATHS COLD_CODEC STAGED_MAX_BYTES STAGED_TTL_MS
    TXN_MEMORY_MS
"""


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return str(path)


def value_of(config: Config, key: str) -> Value:
    (found,) = [value for value in config.values if value.setting.key == key]
    return found


def refusal(**call: Any) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(call.pop("flags", {}), call.pop("environ", {}), **call)
    return str(caught.value)


def test_every_variable_of_the_contract_is_known() -> None:
    variables = {setting.variable for setting in settings().values()}
    assert {"TOPICS_" + name for name in CONTRACT.split()} <= variables


def test_defaults_are_those_of_the_contract() -> None:
    config = load({}, {})
    assert config.server.address == ("127.0.0.1", 4000)
    assert config.server.data_dir == "./topics-data"
    assert config.store.wal_shards == default_shards() <= 8
    assert (config.store.segment_max_events, config.store.segment_max_bytes) == (10_000, 67_108_864)
    assert config.limits.max_body_bytes == 67_108_864
    assert config.limits.max_total_bytes == 0
    assert not config.security.api_keys.on
    assert not config.warnings
    assert {value.origin for value in config.values} == {"default"}


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "[server]\nport = 1\nhost = '127.0.0.2'\ndata_dir = 'd'\n")
    config = load({"port": "3"}, {"TOPICS_PORT": "2", "TOPICS_HOST": "127.0.0.3"}, file=file)
    assert (config.server.port, config.server.host, config.server.data_dir) == (3, "127.0.0.3", "d")
    origins = {key: value_of(config, key).origin for key in ("port", "host", "data_dir", "port_file")}
    assert origins == {
        "port": "flag --port",
        "host": "environment TOPICS_HOST",
        "data_dir": f"file {file}",
        "port_file": "default",
    }


def test_file_is_found_by_flag_then_variable_then_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, {}).file is None
    for name, port in (("topics.toml", 1), ("by-variable.toml", 2), ("by-flag.toml", 3)):
        (tmp_path / name).write_text(f"[server]\nport = {port}\n")
    assert load({}, {}).server.port == 1
    assert load({}, {"TOPICS_CONFIG": "by-variable.toml"}).server.port == 2
    assert load({}, {"TOPICS_CONFIG": "by-variable.toml"}, file="by-flag.toml").server.port == 3


def test_named_file_that_is_missing_is_refused() -> None:
    assert "--config" in refusal(file="nowhere.toml")
    assert "TOPICS_CONFIG" in refusal(environ={"TOPICS_CONFIG": "nowhere.toml"})


def test_unparsable_number_in_the_environment_keeps_the_default_with_a_warning() -> None:
    for text in ("many", "1.0", "-1", "1e3", " 5", "0x10"):
        config = load({}, {"TOPICS_MAX_TOPICS": text})
        assert config.store.max_topics == 100_000
        assert len(config.warnings) == 1
        assert "TOPICS_MAX_TOPICS" in config.warnings[0]
        assert repr(text) in config.warnings[0]


def test_empty_variable_counts_as_unset() -> None:
    config = load({}, dict.fromkeys(("TOPICS_PORT", "TOPICS_HOST", "TOPICS_API_KEYS", "TOPICS_PORT_FILE"), ""))
    assert {value.origin for value in config.values} == {"default"}
    assert not config.warnings


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("yes", False)])
def test_switches_of_the_environment_know_one_and_true(text: str, on: bool) -> None:
    assert load({}, {"TOPICS_PROBE_AUTH": text}).security.probe_auth is on


def test_unknown_variable_is_warned_about_with_the_likely_name() -> None:
    (warning,) = load({}, {"TOPICS_PROT": "1", "TOPICS_URL": "x", "TOPICS_TOKEN": "y", "OTHER": "z"}).warnings
    assert "TOPICS_PROT" in warning
    assert "TOPICS_PORT" in warning


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nprot = 1", ["prot", "1", "did you mean port"]),
        ("[sever]\nport = 1", ["sever", "sections are"]),
        ("port = 1", ["port", "[server]"]),
        ("[storage]\nport = 1", ["port", "belongs to [server]"]),
        ("[server]\nport = '1'", ["port", "'1'", "a whole number"]),
        ("[server]\nport = true", ["port", "True", "a whole number"]),
        ("[security]\nprobe_auth = 1", ["probe_auth", "true or false"]),
        ("[tier]\ncold_codec = 'zip'", ["cold_codec", "zip", "zstd"]),
        ("[server]\nport = 70000", ["port", "70000", "65535", "some.toml"]),
        ("[storage]\nrecovery = 'hope'", ["recovery", "hope", "salvage", "some.toml"]),
        ("[security]\nallowed_hosts = [1]", ["allowed_hosts", "a list of texts"]),
        ("server = 3", ["server", "[server]"]),
        ("][", ["not TOML"]),
    ],
)
def test_bad_file_is_refused_naming_key_value_and_remedy(tmp_path: Path, text: str, told: list[str]) -> None:
    message = refusal(file=toml(tmp_path, text))
    assert all(part in message for part in told), message


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"TOPICS_WAL_SHARDS": "0"}, ["wal_shards", "0", "from 1 to 64", "TOPICS_WAL_SHARDS"]),
        ({"TOPICS_RECOVERY": "hope"}, ["recovery", "hope", "salvage", "TOPICS_RECOVERY"]),
        ({"TOPICS_HOST": "a:b"}, ["host", "a:b", "port", "TOPICS_HOST"]),
        ({"TOPICS_TLS_CERT": "c.pem"}, ["tls_key"]),
        ({"TOPICS_API_KEYS": "s:everything"}, ["entry 1", "scope"]),
    ],
)
def test_readable_but_wrong_variable_is_refused(environ: dict[str, str], told: list[str]) -> None:
    message = refusal(environ=environ)
    assert all(part in message for part in told), message


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"prot": "1"}, ["--prot", "1", "did you mean --port"]),
        ({"port": "x"}, ["--port", "'x'", "a whole number"]),
        ({"probe_auth": "maybe"}, ["--probe-auth", "maybe", "true or false"]),
    ],
)
def test_bad_flag_is_refused_naming_key_value_and_remedy(flags: dict[str, str], told: list[str]) -> None:
    message = refusal(flags=flags)
    assert all(part in message for part in told), message


def test_secrets_are_neither_flags_nor_shown(tmp_path: Path) -> None:
    assert "hush" not in refusal(flags={"api_keys": "hush"})
    assert "hush" not in refusal(flags={"api_key": "hush"})
    assert "hush" not in refusal(file=toml(tmp_path, "[security]\napi_key = 'hush'"))
    config = load({}, {"TOPICS_API_KEYS": "hush:r,hush2"})
    assert value_of(config, "api_keys").shown == "2 key(s)"
    assert "hush" not in repr(config)


def test_keys_of_a_file_may_be_a_list(tmp_path: Path) -> None:
    config = load({}, {}, file=toml(tmp_path, "[security]\napi_keys = ['a:r', 'b:w:x.']"))
    assert [key.prefixes for key in config.security.api_keys.keys] == [(), (b"x.",)]


def test_cold_tier_that_does_not_exist_is_said() -> None:
    (warning,) = load({}, {"TOPICS_COLD_DIR": "cold"}).warnings
    assert "no cold tier" in warning


def test_address_beyond_loopback_needs_keys() -> None:
    with pytest.raises(InvalidConfig, match="TOPICS_API_KEYS"):
        load({}, {"TOPICS_HOST": "0.0.0.0:0"}).check_bind()
    load({}, {"TOPICS_HOST": "0.0.0.0", "TOPICS_API_KEYS": "s"}).check_bind()
    load({}, {"TOPICS_HOST": "0.0.0.0", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}).check_bind()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", ("127.0.0.1", 7)),
        ("127.0.0.1:9", ("127.0.0.1", 9)),
        ("name:0", ("name", 0)),
        ("::1", ("::1", 7)),
        ("[::1]", ("::1", 7)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_host_may_be_a_full_address(host: str, address: tuple[str, int]) -> None:
    assert split_address(host, 7) == address
    assert ServerOptions(host=host, port=7).address == address


@pytest.mark.parametrize("host", ["a:", "a:x", ":9", "a:70000", "a:-1", "[]:9"])
def test_address_that_cannot_be_split_is_refused(host: str) -> None:
    with pytest.raises(InvalidConfig, match="host"):
        split_address(host, 7)


def test_every_section_of_the_file_can_be_set(tmp_path: Path) -> None:
    lines = []
    for section in PARTS:
        lines.append(f"[{section}]")
        for setting in settings().values():
            if setting.section == section and isinstance(setting.default, int) and setting.kind is int:
                lines.append(f"{setting.key} = {setting.default}")
    config = load({}, {}, file=toml(tmp_path, "\n".join(lines)))
    assert sum(value.origin.startswith("file") for value in config.values) > 20


def test_what_only_tests_set_is_no_setting() -> None:
    assert "wal_file_bytes" in settings()
    assert "wal_filled_bytes" not in settings()
    assert load({}, {}).store.wal_filled_bytes == 4 << 20
    assert "unknown flag --wal-filled-bytes" in refusal(flags={"wal_filled_bytes": "2048"})
