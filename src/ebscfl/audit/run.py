"""`ebs-cfl audit`: plays rounds under every protocol, runs every attack on the views, scores them, writes the page.

Red means: a protocol that promises to hide updates (``hides_updates`` in the registry) does not. `AuditReport.alarms`
lists why; the command's exit code and the regression test in CI rest on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebscfl import rng
from ebscfl.audit import evidence
from ebscfl.audit.collusion import collusion
from ebscfl.audit.decode import decode
from ebscfl.audit.differencing import differencing
from ebscfl.audit.kdc_view import kdc_view as estimate_of_kdc
from ebscfl.audit.plain import read
from ebscfl.audit.record import Finding, Record, Truth, example_truth, judge, kdc_view, play, server_view
from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import Estimate, View
from ebscfl.errors import ConfigError
from ebscfl.ids import client_address
from ebscfl.protocol import faults
from ebscfl.protocol.registry import protocol_info

PROTOCOLS = ("plain", "paper", "sealed")
UPLOADS = {"plain": "PlainUpload", "paper": "EncodedUpdate", "sealed": "SealedUpload"}

INHERENT = ("differencing", "collusion")
"""Attacks on results: no exact sum withstands them, so what they find is reported and not an alarm."""

NAIVE = (4, 2, 6)
"""Clients, clusters, dim of the naive scheme's round: its keys grow like (l m n)^3."""

Attack = Callable[[View], Estimate]
PAPER_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("paper", {}),
    ("paper, zeta traceless", {"zeta": "traceless"}),
    ("paper, groups of 4", {"group": 4}),
)


@dataclass(frozen=True)
class AuditSettings:
    """What is played."""

    protocol: str = "all"
    clients: int = 10
    clusters: int = 2
    dim: int = 2000
    seed: int = 0
    rounds: int = 200  # rounds of sealed that the statistics rest on

    def __post_init__(self) -> None:
        if self.protocol not in (*PROTOCOLS, "all"):
            raise ConfigError(f"audit knows the protocols all, {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        for name, least in (("clients", 4), ("clusters", 1), ("dim", 2), ("rounds", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least} for an audit, not {getattr(self, name)}")

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols to audit."""
        return PROTOCOLS if self.protocol == "all" else (self.protocol,)


@dataclass(frozen=True)
class AuditReport:
    """All findings of one audit."""

    settings: AuditSettings
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def alarms(self) -> tuple[str, ...]:
        """Why a protocol that promises to hide updates fails; empty if none does."""
        return tuple(reason for finding in self.findings for reason in alarms_of(finding))

    def to_json(self) -> dict[str, Any]:
        """The document `ebs-cfl audit --json` prints."""
        return {
            "settings": asdict(self.settings),
            "attacks": [finding.to_json() for finding in self.findings],
            "alarms": list(self.alarms),
            "seconds": self.seconds,
        }


def alarms_of(finding: Finding) -> list[str]:
    """Reasons to turn red: only for protocols that promise to hide, and only beyond what a result itself tells."""
    if not protocol_info(finding.protocol.split(",")[0]).hides_updates or finding.name in INHERENT:
        return []
    reasons = []
    if finding.updates_recovered:
        reasons.append(
            f"{finding.protocol}: {finding.name} recovers {finding.updates_recovered} of {finding.of} updates"
        )
    if finding.p_value is not None and finding.p_value < evidence.ALARM:
        reasons.append(f"{finding.protocol}: {finding.name} tells inputs from noise, p = {finding.p_value:.1e}")
    return reasons


def run_audit(
    protocol: str = "all",
    clients: int = 10,
    clusters: int = 2,
    dim: int = 2000,
    seed: int = 0,
    out: Path | None = None,
    *,
    rounds: int = 200,
    data_dir: Path | None = None,
) -> AuditReport:
    """Play, attack, score; with ``out`` also write audit.html and audit.json into that folder."""
    settings = AuditSettings(protocol, clients, clusters, dim, seed, rounds)
    started = time.perf_counter()
    findings: list[Finding] = []
    for name in settings.protocols:
        findings += {"plain": audit_plain, "paper": audit_paper, "sealed": audit_sealed}[name](settings)
    report = AuditReport(settings, tuple(findings), time.perf_counter() - started)
    if out is not None:
        write(report, out, data_dir=data_dir)
    return report


def write(report: AuditReport, out: Path, *, data_dir: Path | None = None) -> Path:
    """audit.json and audit.html in ``out``."""
    from ebscfl.audit.page import render
    from ebscfl.audit.pictures import convolutional_gallery, dense_gallery

    out.mkdir(parents=True, exist_ok=True)
    (out / "audit.json").write_text(json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    galleries = [dense_gallery(report.settings.seed), *convolutional_gallery(report.settings.seed, data_dir=data_dir)]
    page = out / "audit.html"
    page.write_text(render(report, galleries), encoding="utf-8")
    return page


# --- one protocol each ------------------------------------------------------------------------------------------------


def audit_plain(settings: AuditSettings) -> list[Finding]:
    """The baseline: everything is in the clear."""
    record = play("plain", [_truth(settings)], seed=settings.seed)
    return [_timed("read", record, read, server_view(record)), _difference(settings, "plain")]


def audit_paper(settings: AuditSettings) -> list[Finding]:
    """Every attack on every variant of the paper's protocol."""
    findings = []
    truth = _truth(settings)
    for label, options in PAPER_VARIANTS:
        record = play("paper", [truth], seed=settings.seed, **options)
        view = server_view(record)
        findings += [
            _timed("decode", record, decode, view, protocol=label),
            _timed("spectral", record, spectral, view, protocol=label),
        ]
        if not options:
            pool = server_view(record, corrupt=range(settings.clients // 4))
            findings.append(_timed("collusion", record, collusion, pool))
            findings.append(_timed("kdc-view", record, estimate_of_kdc, kdc_view(record)))
    n, m, dim = NAIVE
    naive = play("paper-naive", [example_truth(n, m, dim, _root(settings))], seed=settings.seed)
    for name, attack in (("decode", decode), ("spectral", spectral)):
        findings.append(_timed(name, naive, attack, server_view(naive), protocol=f"paper-naive, n={n}, l={dim}"))
    return [*findings, _difference(settings, "paper")]


def audit_sealed(settings: AuditSettings) -> list[Finding]:
    """Statistics over many rounds, then what remains: coalitions, repeated inputs, the key center."""
    truths = [
        example_truth(settings.clients, settings.clusters, settings.dim, _root(settings), index, opposed=0.2)
        for index in range(settings.rounds)
    ]
    record = play("sealed", truths, seed=settings.seed)
    view = server_view(record)
    findings = [*evidence.uploads_finding(record, view), evidence.weights_finding(record, view)]
    few = server_view(record, corrupt=range(settings.clients // 4))
    most = server_view(record, corrupt=range(settings.clients - 1))
    findings.append(_timed("collusion", record, collusion, few))
    findings.append(_timed("collusion", record, collusion, most))
    findings.append(_timed("kdc-view", record, estimate_of_kdc, kdc_view(record)))
    return [*findings, _difference(settings, "sealed")]


def _root(settings: AuditSettings) -> bytes:
    return rng.root_from_seed(settings.seed)


def _truth(settings: AuditSettings) -> Truth:
    return example_truth(settings.clients, settings.clusters, settings.dim, _root(settings))


def _difference(settings: AuditSettings, protocol: str) -> Finding:
    """Two rounds with the same updates, the last client absent from the first (both its upload and its repetition)."""
    truth = _truth(settings)
    wire = faults.silence(client_address(settings.clients - 1), message=UPLOADS[protocol], times=2)
    record = play(protocol, [truth, truth], seed=settings.seed, wire=wire)
    return _timed("differencing", record, differencing, server_view(record))


def _timed(name: str, record: Record, attack: Attack, view: View, *, protocol: str = "") -> Finding:
    started = time.perf_counter()
    estimate = attack(view)
    return judge(name, record, estimate, time.perf_counter() - started, protocol=protocol)
