"""Table 1 of the paper, and what it leaves out: who is robust against what, and under which trust.

Rows name where the statement comes from. PEFL is credited with malicious security by the paper; Schneider, Suresh and
Yalame (IEEE TIFS 2023, arXiv 2409.19964) showed that it gives every user's whole gradient to one party.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Feature:
    """One row of Table 1."""

    scheme: str
    malicious_clients: str
    byzantine_robust: str
    single_server: str
    clustered: str
    hides_from_server: str
    remark: str
    source: str


FEATURES = (
    Feature("SecAgg", "no", "no", "yes", "no", "updates", "measured here, semi-honest",
            "Bonawitz et al., CCS 2017, ePrint 2017/281"),
    Feature("SecAgg+", "no", "no", "yes", "no", "updates", "measured here, semi-honest", "Bell et al., CCS 2020"),
    Feature("CCESA", "no", "no", "yes", "no", "updates, with high probability", "measured here",
            "Choi et al., 2020, arXiv 2012.05433"),
    Feature("FastSecAgg", "no", "no", "yes", "no", "updates", "measured here",
            "Kadhe et al., 2020, arXiv 2009.11248"),
    Feature("LightSecAgg", "no", "no", "yes", "no", "updates", "measured here",
            "So et al., MLSys 2022, arXiv 2109.14236"),
    Feature("SwiftAgg+", "no", "no", "yes", "no", "updates, information-theoretically",
            "needs links between clients; no public code",
            "Jahani-Nezhad et al., JSAC 2023, arXiv 2203.13060"),
    Feature("PEFL", "claimed, broken", "yes", "no (two)", "no", "nothing, as it turned out",
            "the paper's table credits it; one party learns every gradient",
            "Liu et al., TIFS 2021; broken: Schneider et al., TIFS 2023, arXiv 2409.19964"),
    Feature("SAFELearning", "yes", "partly (subgroup checks)", "yes", "no", "updates within subgroups",
            "not to be confused with SAFELearn", "Zhang et al., arXiv 2102.02402"),
    Feature("RFLPA", "yes", "yes (FLTrust score)", "yes", "no", "updates",
            "closest in aim and without a trusted dealer; the paper does not cite it",
            "Mai et al., NeurIPS 2024, arXiv 2405.15182"),
    Feature("SAFEFL", "depends on the MPC back end", "yes (FLTrust)", "no (two to four)", "no", "updates",
            "a framework over MP-SPDZ, linear models", "github.com/encryptogroup/SAFEFL, MIT"),
    Feature("EBS-CFL as printed", "yes", "yes", "yes, and a key dealer", "yes", "nothing, as we found",
            "a curious server undoes the encoding: docs/security-model.md", "the paper"),
    Feature("sealed (ours)", "yes", "yes", "yes, and a key centre", "yes", "updates, clusters and scores",
            "the key centre sees scores and must not collude with the server", "docs/security-model.md"),
)  # fmt: skip


def markdown() -> str:
    """The table."""
    names = [field.name.replace("_", " ") for field in fields(Feature)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(astuple(feature)) + " |" for feature in FEATURES]
    return "\n".join(lines) + "\n"


def table_features(out: Path, *, scale: str = "full", seed: int = 0) -> list[Path]:
    """Table 1 with its missing rows."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "table-features.md"
    path.write_text(markdown())
    return [path]
