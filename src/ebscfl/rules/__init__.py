"""Robust aggregation rules: one function a file, (n, d) updates in, aggregate and weights out.

`RULES` lists them with the properties they promise; ``tests/contract/test_rules.py`` holds each rule to them. Import a
rule from its module (``from ebscfl.rules.median import median``) or call it by name: ``RULES["median"](updates)``.
This module itself loads neither torch nor any rule, so `ebscfl.rules.score_history` stays usable without torch.

To add a rule: write ``rules/<name>.py`` with a function ``<name>``, add a line below, a loop twin to
``tests/rules/test_<name>.py`` and a case to the contract suite.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ebscfl.rules.result import ClusteredResult, RuleResult

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A rule by name, and what it promises for all finite updates x."""

    name: str
    title: str
    permutation_invariant: bool
    """The order of the clients does not change the aggregate, and moves the weights along."""
    translation_equivariant: bool
    """rule(x + t) = rule(x) + t."""
    scale_equivariant: bool
    """rule(c x) = c rule(x) for c > 0."""
    mean_without_faults: bool
    """With its defense set to 0 faulty clients it is the plain mean."""
    needs_server_update: bool = False
    """It compares with an update the server trained itself."""
    clustered: bool = False
    """It returns one aggregate per cluster (`ClusteredResult`)."""
    knob: str | None = None
    """The keyword that says how many hostile clients it reckons with."""

    @property
    def function(self) -> Callable[..., RuleResult | ClusteredResult]:
        """The function itself, imported on first use."""
        return cast(
            "Callable[..., RuleResult | ClusteredResult]",
            getattr(importlib.import_module(f"{__name__}.{self.name}"), self.name),
        )

    def __call__(self, updates: Any, **settings: Any) -> RuleResult | ClusteredResult:
        """Apply the rule."""
        return self.function(updates, **settings)


def _table(*rules: Rule) -> Mapping[str, Rule]:
    return MappingProxyType({rule.name: rule for rule in rules})


RULES: Mapping[str, Rule] = _table(
    #    name, title, permutation, translation, scale, mean
    Rule("fedavg", "FedAvg", True, True, True, True),
    Rule("median", "Median", True, True, True, False),
    Rule("trimmed_mean", "Trimmed mean", True, True, True, True, knob="trim"),
    Rule("krum", "Krum", True, True, True, False, knob="faulty"),
    Rule("multi_krum", "Multi-Krum", True, True, True, True, knob="faulty"),
    # The next two look at directions only: a longer update changes nothing.
    Rule("fltrust", "FLTrust", True, False, False, False, needs_server_update=True),
    Rule("rfca", "RFCA", True, False, False, False, needs_server_update=True, clustered=True),
)
