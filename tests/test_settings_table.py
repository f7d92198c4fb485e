from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl import config
from ebscfl.algorithms import ALGORITHMS, settings
from ebscfl.errors import ConfigError
from ebscfl.learning.local import STEPS
from ebscfl.learning.models import MODEL_NAMES
from ebscfl.rules.score_history import WEIGHTS
from ebscfl.settings_table import assign, build, dump_toml, nearest, parse_assignment


@dataclass(frozen=True)
class Inner:
    EXTRA_TABLES: ClassVar[str] = "options"

    size: int = 1
    share: float = 0.5
    limit: int | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"size must not be negative, not {self.size}")
        if self.share > 1:
            raise ConfigError("too much is asked")


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    on: bool = False
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"nmae": "y"}, "nmae: unknown key; did you mean 'name'?"),
        ({"inner": {"sise": 1}}, "inner.sise: unknown key; did you mean 'size'?"),
        ({"inner": {"size": "many"}}, "inner.size: expected a whole number, got text 'many'"),
        ({"inner": {"size": True}}, "inner.size: expected a whole number, got truth value True"),
        ({"inner": {"size": 1.5}}, "inner.size: expected a whole number, got number 1.5"),
        ({"inner": {"share": "half"}}, "inner.share: expected a number, got text 'half'"),
        ({"on": 1}, "on: expected true or false, got whole number 1"),
        ({"name": 3}, "name: expected a text, got whole number 3"),
        ({"names": ["a", 2]}, "names[1]: expected a text, got whole number 2"),
        ({"inner": 3}, "inner: expected a table [inner], got whole number 3"),
        ({"inner": {"options": 3}}, "inner.options: unknown key"),
        ({"inner": {"size": -1}}, "inner.size must not be negative, not -1"),
        ({"inner": {"share": 2.0}}, "inner: too much is asked"),
    ],
)
def test_wrong_tables_are_one_line_with_the_dotted_key(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, table)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_values_are_typed() -> None:
    built = build(Outer, {"names": "one", "inner": {"share": 1, "limit": 3, "extra": {"a": 1}}})
    assert built == Outer(names=("one",), inner=Inner(share=1.0, limit=3, options={"extra": {"a": 1}}))
    assert isinstance(built.inner.share, float)
    assert build(Outer, {"inner": {"limit": "none"}}).inner.limit is None


def test_nearest_lists_all_when_nothing_is_close() -> None:
    assert nearest("zzz", ["beta", "alpha"]) == "known: alpha, beta"


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("rounds=5", ["rounds"], 5),
        ("a.b = 0.5", ["a", "b"], 0.5),
        ("on=true", ["on"], True),
        ("name=label-flip", ["name"], "label-flip"),
        ('names=["a", "b"]', ["names"], ["a", "b"]),
        ("path=/data/x", ["path"], "/data/x"),
    ],
)
def test_assignments_are_toml_or_bare_text(text: str, keys: list[str], value: object) -> None:
    assert parse_assignment(text) == (keys, value)


@pytest.mark.parametrize("text", ["rounds", "=5", "a..b=1", "names=[1", "x=", 'x="open'])
def test_broken_assignments_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_assignment(text)


def test_assign_replaces_without_changing_the_original() -> None:
    table = {"a": {"b": 1, "c": 2}, "d": 3}
    assert assign(table, ["a", "b"], 9) == {"a": {"b": 9, "c": 2}, "d": 3}
    assert assign(table, ["new", "x"], 1)["new"] == {"x": 1}
    assert table == {"a": {"b": 1, "c": 2}, "d": 3}
    with pytest.raises(ConfigError, match="is a value, not a table"):
        assign(table, ["d", "e"], 1)


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    name=texts.filter(lambda text: text != "none"),
    on=st.booleans(),
    names=st.lists(texts, max_size=3),
    size=st.integers(0, 2**62),
    share=st.floats(-1e300, 1.0),
    limit=st.none() | st.integers(),
)
def test_what_is_dumped_is_read_back(
    name: str, on: bool, names: list[str], size: int, share: float, limit: int | None
) -> None:
    extra = {"odd name": {"a": 1, "b": "x"}} if on else {}
    settings = Outer(name, on, tuple(names), Inner(size, share, limit, extra))
    assert build(Outer, tomllib.loads(dump_toml(settings))) == settings


FULL = Path(__file__).parent.parent / "docs" / "samples" / "full.toml"
CHOICES: dict[str, tuple[str, ...]] = {
    "device": config.DEVICES,
    "evaluation": config.EVALUATIONS,
    "protocol": config.PROTOCOLS,
    "methods": tuple(ALGORITHMS),
    "attacks": tuple(config.ATTACKS),
    "model.name": MODEL_NAMES,
    "local.method": ("auto", *STEPS),
    "server.cluster_init": settings.CLUSTER_INITS,
    "server.normalize": settings.NORMALIZATIONS,
    "server.averaging": settings.AVERAGINGS,
    "server.root_updates": settings.ROOT_UPDATES,
    "server.root_scale": settings.ROOT_SCALES,
    "server.root_direction": settings.ROOT_DIRECTIONS,
    "server.unsupported": settings.UNSUPPORTED,
    "server.empty_cluster": settings.EMPTY_CLUSTERS,
    "server.share": settings.SHARES,
    "server.history_scope": settings.HISTORY_SCOPES,
    "server.history_weight": WEIGHTS,
    "attack.placement": config.PLACEMENTS,
    "attack.claim": config.CLAIMS,
}


def explained() -> dict[str, str]:
    """Every setting of the full sample by its dotted key, with its line and the comment lines that go on below it."""
    found: dict[str, str] = {}
    section = key = ""
    for line in FULL.read_text(encoding="utf-8").splitlines():
        if head := re.match(r"\[([\w.-]+)\]", line):
            section, key = head[1] + ".", ""
        elif setting := re.match(r"(\w+) = ", line):
            key = section + setting[1]
            found[key] = line
        elif key and line.lstrip().startswith("#"):
            found[key] += " " + line.strip().lstrip("# ")
        else:
            key = ""
    return found


def test_every_setting_of_the_full_sample_says_what_it_means() -> None:
    found = explained()
    shown = tomllib.loads(FULL.read_text(encoding="utf-8"))
    assert found.keys() == {
        f"{section}.{key}" if section else key
        for section, table in (("", shown), *((name, part) for name, part in shown.items() if isinstance(part, dict)))
        for key, value in table.items()
        if not isinstance(value, dict)
    } | {"attack.label-flip.variant"}
    for key, text in found.items():
        _, _, meaning = text.partition(" # ")
        assert len(meaning) > 4, key


@pytest.mark.parametrize("key", list(CHOICES))
def test_the_full_sample_names_every_choice(key: str) -> None:
    words = set(re.findall(r"[\w-]+", explained()[key]))
    assert set(CHOICES[key]) <= words, set(CHOICES[key]) - words
