"""The configuration of a server: the options of every part, and where each value came from.

A value is taken from the first of these that gives it: a flag, the environment (`TOPICS_<KEY>`), a TOML file
(`--config`, else `TOPICS_CONFIG`, else `./topics.toml` if it is there), the default. An unknown key or flag and a value
out of bounds stop the start, naming the key, the value and the remedy. One leniency is part of the wire contract: an
environment variable whose number cannot be read keeps the default, with a warning.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from topics.api.auth import Keyring, check_bind, parse_keys
from topics.api.settings import (
    LimitOptions,
    SecurityOptions,
    ServerOptions,
    StagingOptions,
    TierOptions,
    TransportSettings,
)
from topics.host.fs import Fs, OsFs, read_file
from topics.model.errors import InvalidConfig, InvalidRequest
from topics.storage.options import INTERNAL, StoreOptions

PREFIX: Final = "TOPICS_"
DEFAULT_FILE: Final = "topics.toml"

PARTS: Final[dict[str, Any]] = {
    "server": ServerOptions,
    "security": SecurityOptions,
    "limits": LimitOptions,
    "transport": TransportSettings,
    "storage": StoreOptions,
    "tier": TierOptions,
    "staging": StagingOptions,
}
"""Section of the TOML file -> the options that it holds. Keys are unique across sections, so a variable needs none."""

FOREIGN: Final = frozenset({"TOPICS_CONFIG", "TOPICS_URL", "TOPICS_TOKEN"})
"""Variables that others of our programs read; they set nothing here."""

SECRET: Final = frozenset({"api_keys"})
"""Neither shown, nor taken as a flag: the arguments of a process are visible to every user of the machine."""

SHARDS_MAX_BY_DEFAULT: Final = 8

_NUMBER = re.compile(r"\+?[0-9]+")


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set: a field of one part's options."""

    section: str
    key: str
    kind: Any
    """The field's type, without None."""
    optional: bool
    default: Any

    @property
    def variable(self) -> str:
        return PREFIX + self.key.upper()

    @property
    def flag(self) -> str | None:
        return None if self.key in SECRET else "--" + self.key.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Value:
    """A setting as it is in effect."""

    setting: Setting
    value: Any
    origin: str
    """`default`, `file <path>`, `environment <variable>` or `flag <flag>`."""

    @property
    def shown(self) -> Any:
        """The value as JSON and people see it; of keys only how many there are."""
        if isinstance(self.value, Keyring):
            return f"{len(self.value.keys)} key(s)" if self.value.on else "no keys"
        return list(self.value) if isinstance(self.value, tuple) else self.value


@dataclass(frozen=True, slots=True)
class Config:
    server: ServerOptions
    security: SecurityOptions
    limits: LimitOptions
    transport: TransportSettings
    store: StoreOptions
    tier: TierOptions
    staging: StagingOptions
    values: tuple[Value, ...]
    """Every setting with its value and origin, in the order of the sections."""
    warnings: tuple[str, ...]
    """What was set and has no effect, one sentence each; the server says them when it starts."""
    file: str | None
    """The TOML file that was read."""

    def check_bind(self) -> None:
        """Refuse an address beyond loopback without keys."""
        host, _ = self.server.address
        check_bind(host, self.security.api_keys, allow_insecure=self.security.allow_insecure_no_auth)


def default_shards() -> int:
    """As many WAL shards as processors, at most 8: more only costs file handles."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, SHARDS_MAX_BY_DEFAULT)


def settings() -> dict[str, Setting]:
    """Every setting by key, made from the fields of the parts."""
    found: dict[str, Setting] = {}
    for section, part in PARTS.items():
        hints = get_type_hints(part)
        for field in fields(part):
            if INTERNAL in field.metadata:
                continue
            made = field.default_factory
            default = made() if made is not MISSING else field.default
            if field.name == "wal_shards":
                default = default_shards()
            kind, optional = _without_none(hints[field.name])
            assert field.name not in found, f"two parts have a field {field.name}"
            found[field.name] = Setting(section, field.name, kind, optional, default)
    return found


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    file: str | None = None,
    fs: Fs | None = None,
) -> Config:
    """Compose the configuration. `flags` are by key (`data_dir`), as text or as values; `file` is `--config`."""
    environ = os.environ if environ is None else environ
    known = settings()
    warnings: list[str] = []
    given: dict[str, tuple[Any, str]] = {}
    path = _file_to_read(file, environ, fs or OsFs())
    if path is not None:
        given.update(_from_file(path, fs or OsFs(), known))
    given.update(_from_environment(environ, known, warnings))
    given.update(_from_flags(flags or {}, known))
    parts = {section: _compose(section, part, known, given) for section, part in PARTS.items()}
    values = tuple(
        Value(setting, getattr(parts[setting.section], key), given[key][1] if key in given else "default")
        for key, setting in known.items()
    )
    if parts["tier"].cold_dir is not None:
        warnings.append(
            f"cold_dir is {parts['tier'].cold_dir!r} ({given['cold_dir'][1]}), but this version has no cold tier: "
            "every segment stays in the data directory. Remove the setting to silence this"
        )
    return Config(
        server=parts["server"],
        security=parts["security"],
        limits=parts["limits"],
        transport=parts["transport"],
        store=parts["storage"],
        tier=parts["tier"],
        staging=parts["staging"],
        values=values,
        warnings=tuple(warnings),
        file=path,
    )


def _file_to_read(file: str | None, environ: Mapping[str, str], fs: Fs) -> str | None:
    named = file or environ.get("TOPICS_CONFIG") or None
    if named is None:
        return DEFAULT_FILE if fs.exists(DEFAULT_FILE) else None
    if not fs.exists(named):
        source = "--config" if file else "TOPICS_CONFIG"
        raise InvalidConfig(f"{source} names {named!r}, which does not exist; name a TOML file or leave it out")
    return named


def _from_file(path: str, fs: Fs, known: Mapping[str, Setting]) -> Iterator[tuple[str, tuple[Any, str]]]:
    try:
        document = tomllib.loads(read_file(fs, path).decode("utf-8"))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}; make it readable or name another") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from None
    for section, content in document.items():
        if section not in PARTS:
            owner = known.get(section)
            remedy = f"put it under [{owner.section}]" if owner else f"sections are {_listed(PARTS)}"
            raise InvalidConfig(f"{path}: unknown section or top-level key {section!r}; {remedy}", key=section)
        if not isinstance(content, dict):
            raise InvalidConfig(f"{path}: {section!r} must be a section, written [{section}]", key=section)
        for key, raw in content.items():
            setting = known.get(key)
            if setting is None or setting.section != section:
                here = [name for name, one in known.items() if one.section == section]
                remedy = f"it belongs to [{setting.section}]" if setting else _suggestion(key, here)
                raise InvalidConfig(f"{path}: unknown key {key!r}{_quoted(key, raw)} in [{section}]; {remedy}", key=key)
            yield key, (_from_toml(setting, raw, path), f"file {path}")


def _from_toml(setting: Setting, raw: Any, path: str) -> Any:
    if setting.kind is Keyring:
        entries = raw if isinstance(raw, list) else [raw]
        if not all(isinstance(entry, str) for entry in entries):
            raise InvalidConfig(f"{path}: {setting.key} must be a text or a list of texts", key=setting.key)
        return parse_keys(",".join(entries))
    if setting.kind is tuple:
        entries = raw if isinstance(raw, list) else [raw]
        if all(isinstance(entry, str) for entry in entries):
            return tuple(entries)
    elif type(raw) is _plain(setting.kind):
        return raw
    raise InvalidConfig(f"{path}: {setting.key} is {raw!r}; it must be {_wanted(setting)}", key=setting.key, value=raw)


def _from_environment(
    environ: Mapping[str, str], known: Mapping[str, Setting], warnings: list[str]
) -> Iterator[tuple[str, tuple[Any, str]]]:
    by_variable = {setting.variable: setting for setting in known.values()}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in FOREIGN:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            warnings.append(f"{variable} is set and has no effect; {_suggestion(variable, list(by_variable))}")
            continue
        text = environ[variable]
        if not text:
            continue
        if setting.kind is int and not _NUMBER.fullmatch(text):
            warnings.append(f"{variable}={text!r} is not a whole number; the default {setting.default} is kept")
            continue
        if setting.kind is bool:
            # The contract knows `1` and `true`; every other text is off.
            yield setting.key, (text.lower() in ("1", "true"), f"environment {variable}")
            continue
        yield setting.key, (_from_text(setting, text, variable), f"environment {variable}")


def _from_flags(flags: Mapping[str, Any], known: Mapping[str, Setting]) -> Iterator[tuple[str, tuple[Any, str]]]:
    by_key = {key: setting for key, setting in known.items() if setting.flag}
    for key, raw in flags.items():
        setting = by_key.get(key)
        if setting is None:
            name = "--" + key.replace("_", "-")
            if key in SECRET:
                remedy = f"a secret is not taken from the command line; set {PREFIX}{key.upper()} or the TOML file"
            else:
                remedy = _suggestion(name, [str(one.flag) for one in by_key.values()])
            raise InvalidConfig(f"unknown flag {name}{_quoted(key, raw)}; {remedy}", key=key)
        yield (
            key,
            (_from_text(setting, raw, str(setting.flag)) if isinstance(raw, str) else raw, f"flag {setting.flag}"),
        )


def _from_text(setting: Setting, text: str, where: str) -> Any:
    if setting.kind is Keyring:
        return parse_keys(text)
    if setting.kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if setting.kind is int and _NUMBER.fullmatch(text):
        return int(text)
    if setting.kind is bool and text.lower() in ("1", "true", "0", "false"):
        return text.lower() in ("1", "true")
    if _plain(setting.kind) is str:
        return text
    raise InvalidConfig(f"{where} is {text!r}; it must be {_wanted(setting)}", key=setting.key, value=text)


def _compose(section: str, part: Any, known: Mapping[str, Setting], given: Mapping[str, tuple[Any, str]]) -> Any:
    mine = {key: setting.default for key, setting in known.items() if setting.section == section}
    chosen = {key: given[key][0] for key in mine if key in given}
    try:
        return part(**{**mine, **chosen})
    except InvalidRequest as error:
        raise _blamed(error, part, chosen, given) from None


def _blamed(error: InvalidRequest, part: Any, chosen: Mapping[str, Any], given: Any) -> InvalidConfig:
    """Find whose value it was by trying each alone, so that the message names where to change it."""
    for key, value in chosen.items():
        try:
            part(**{key: value})
        except InvalidRequest as alone:
            if alone.message == error.message:
                return InvalidConfig(f"{error.message} ({given[key][1]})", key=key, value=value)
    return InvalidConfig(error.message)


def _without_none(kind: Any) -> tuple[Any, bool]:
    """`str | None` -> (str, True); a tuple of texts -> tuple; a Literal stays what it is."""
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        assert len(members) == 1, kind
        return members[0], True
    return (tuple if get_origin(kind) is tuple else kind), False


def _plain(kind: Any) -> Any:
    return str if get_origin(kind) is Literal else kind


def _wanted(setting: Setting) -> str:
    if get_origin(setting.kind) is Literal:
        return "one of " + _listed(get_args(setting.kind))
    return {int: "a whole number", bool: "true or false", str: "a text", tuple: "a list of texts"}[setting.kind]


def _suggestion(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "`topics config` lists what can be set"


def _quoted(key: str, raw: Any) -> str:
    """The value of an unknown key, unless the key looks like a misspelt place for a secret."""
    return "" if re.search(r"key|secret|token|pass", key) else f" = {raw!r}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(str(name) for name in names))
