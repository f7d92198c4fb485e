"""Closed, typed settings: frozen dataclasses from TOML tables and back.

A key nobody knows, a value of the wrong type or out of range is one `ConfigError` that names the dotted key. Optional
values are written ``"none"``, because TOML has no null. A dataclass with ``EXTRA_TABLES = "field"`` collects subtables
of any name in that dict field (the per-attack settings).
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ebscfl.errors import ConfigError

SettingsT = TypeVar("SettingsT")

NONE = "none"
"""How an absent optional value is written in TOML."""


def nearest(name: str, known: Sequence[str]) -> str:
    """`` (did you mean X?)`` for the known name closest to ``name``, or the list of all when none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(sorted(known))


def build(kind: type[SettingsT], table: Mapping[str, Any], path: str = "") -> SettingsT:
    """``table`` as an instance of the frozen dataclass ``kind``; ``path`` is the dotted name of the table."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    extra: str | None = getattr(kind, "EXTRA_TABLES", None)
    values: dict[str, Any] = {}
    for key, raw in table.items():
        dotted = f"{path}{key}"
        name = key.replace("-", "_")
        if name in names and name != extra:
            values[name] = convert(raw, hints[name], dotted)
        elif extra and isinstance(raw, Mapping):
            values.setdefault(extra, {})[key] = dict(raw)
        else:
            raise ConfigError(f"{dotted}: unknown key; {nearest(name, names)}")
    try:
        return kind(**values)
    except ConfigError as error:
        raise type(error)(_with_path(str(error), names, path)) from None


def _with_path(message: str, names: Sequence[str], path: str) -> str:
    """Put the dotted path before a message that a section's own check raised."""
    if not path or message.startswith(path):
        return message
    first = message.split(" ", 1)[0].rstrip(":,")
    return f"{path}{message}" if first in names else f"{path.rstrip('.')}: {message}"


def convert(raw: Any, hint: Any, dotted: str) -> Any:
    """``raw`` as the type ``hint``, or a `ConfigError` naming ``dotted``."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{dotted}: expected a table [{dotted}], got {_shown(raw)}")
        return build(typing.cast("type[Any]", hint), raw, f"{dotted}.")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if raw == NONE else convert(raw, inner, dotted)
    if origin is tuple:
        # One bare value stands for a list of one: --set methods=rfca.
        items = raw if isinstance(raw, list | tuple) else [raw]
        return tuple(convert(item, arguments[0], f"{dotted}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{dotted}: expected a table [{dotted}], got {_shown(raw)}")
        return dict(raw)
    return _scalar(raw, hint, dotted)


def _scalar(raw: Any, hint: Any, dotted: str) -> Any:
    # bool is an int to Python, but not to a person who writes a setting.
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if type(raw) is not hint:
        raise ConfigError(f"{dotted}: expected {_TYPE_NAMES.get(hint, str(hint))}, got {_shown(raw)}")
    return raw


_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def _shown(raw: Any) -> str:
    kind = {int: "whole number", float: "number", str: "text", bool: "truth value", dict: "table", list: "list"}
    return f"{kind.get(type(raw), type(raw).__name__)} {raw!r}"


def parse_assignment(text: str) -> tuple[list[str], Any]:
    """``a.b=value`` as (["a", "b"], value); the value is TOML, or a bare text where TOML does not read it."""
    key, separator, raw = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not separator or not all(keys):
        raise ConfigError(f"--set {text!r}: write key=value, for example --set rounds=5")
    raw = raw.strip()
    try:
        return keys, tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        if not raw or any(mark in raw for mark in "\"'[]{}\n="):
            raise ConfigError(f"--set {text!r}: {raw!r} is not a TOML value") from None
        return keys, raw


def assign(table: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of ``table`` with the value under the dotted ``keys`` replaced."""
    head, rest = keys[0], keys[1:]
    if not rest:
        return {**table, head: value}
    inner = table.get(head, {})
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{head}: is a value, not a table, so {'.'.join(keys)} cannot be set")
    return {**table, head: assign(inner, rest, value)}


def dump_toml(settings: Any) -> str:
    """Every setting of a dataclass (nested ones as tables) as TOML that `build` reads back to an equal object."""
    lines: list[str] = []
    _dump_table(_plain(settings), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _plain(settings: Any) -> dict[str, Any]:
    """A settings dataclass as the nested dict TOML shows: the extra tables lie beside the fields."""
    extra = getattr(settings, "EXTRA_TABLES", None)
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name == extra:
            table.update(value)
        else:
            table[field.name] = _plain(value) if dataclasses.is_dataclass(value) else value
    return table


def _dump_table(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines.extend(f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in tables)
    for key, value in tables.items():
        if value:
            dotted = f"{path}.{_key(key)}" if path else _key(key)
            lines.append(f"\n[{dotted}]")
            _dump_table(value, dotted, lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else _text(key)


def _value(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
