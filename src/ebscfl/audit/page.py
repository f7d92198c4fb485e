"""audit.html: pictures, bars and the leakage table on one page that needs no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pillow

from ebscfl.audit import leakage
from ebscfl.audit.inversion import Image
from ebscfl.audit.pictures import Gallery
from ebscfl.audit.record import Finding
from ebscfl.errors import DependencyError

if TYPE_CHECKING:
    from ebscfl.audit.run import AuditReport

PIXELS = 3
"""Each pixel of a data set image becomes a square of so many pixels, so that viewers do not blur it."""

SAY = {
    "read": "The server reads the upload.",
    "decode": "The key that decodes the sum of all uploads, applied to one upload.",
    "spectral": "Eigenspaces of the masked score open the upload: the server alone, one round.",
    "collusion": "The server and some corrupt clients pool what they have.",
    "kdc-view": "What the key center alone can say.",
    "differencing": "Two rounds with the same updates; one client is missing in the first.",
    "uploads": "Every linear reading of the uploads, over many rounds.",
    "clusters": "The best guess of a client's cluster from its upload.",
    "weights": "Whether the key center's answers tell the trust weights.",
}


@dataclass(frozen=True)
class Cell:
    """One reconstruction on the page."""

    uri: str
    caption: str
    good: bool


@dataclass(frozen=True)
class Bar:
    """One attack on one protocol."""

    attack: str
    say: str
    variant: str
    share: float  # of updates recovered, 0..1
    clusters: float  # of clusters guessed right, 0..1
    chance: float
    named: bool  # whether the attack claims clusters at all
    label: str
    inherent: bool
    detail: str


def data_uri(image: Image, scale: int = PIXELS) -> str:
    """A PNG of a (C, H, W) image in [0, 1]."""
    pixels = np.round(255.0 * np.clip(image, 0.0, 1.0)).astype(np.uint8).transpose(1, 2, 0)
    pixels = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
    buffer = io.BytesIO()
    Pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def cells(gallery: Gallery, protocol: str) -> list[Cell]:
    """A row of reconstructions under one protocol."""
    found = []
    for picture in gallery.pictures:
        value = picture.likeness(protocol)
        found.append(Cell(data_uri(picture.seen[protocol]), f"{value:+.2f}", value >= 0.5))
    return found


def bars(findings: Sequence[Finding], protocol: str) -> list[Bar]:
    """The bars of one protocol, in the order the attacks ran."""
    from ebscfl.audit.run import INHERENT

    found = []
    for finding in findings:
        name, _, variant = finding.protocol.partition(",")
        if name.removesuffix("-naive") != protocol:
            continue
        of = max(1, finding.of)
        variant = ("naive scheme," if name.endswith("-naive") else "") + variant
        found.append(
            Bar(
                finding.name,
                SAY.get(finding.name, ""),
                variant.strip(" ,"),
                finding.updates_recovered / of,
                finding.clusters_recovered / of,
                finding.chance,
                finding.clusters_recovered > 0 or finding.name not in ("weights", "kdc-view"),
                f"{finding.updates_recovered} of {finding.of}",
                finding.name in INHERENT and protocol == "sealed",
                _detail(finding),
            )
        )
    return found


def _detail(finding: Finding) -> str:
    text = f"median cosine {finding.median_cosine:.4f}, {1e3 * finding.seconds:.0f} ms; {finding.note}"
    if finding.statistic is not None and finding.p_value is not None:
        text = f"statistic {finding.statistic:.2f}, p = {finding.p_value:.2g}; {text}"
    return text


def render(report: AuditReport, galleries: Sequence[Gallery]) -> str:
    """The page as one string; everything that comes from a run is escaped by the template."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise DependencyError("the audit page needs jinja2: install ebscfl with its dependencies") from error
    environment = Environment(
        loader=PackageLoader("ebscfl.audit", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    protocols = report.settings.protocols
    return environment.get_template("audit.html.j2").render(
        settings=report.settings,
        seconds=report.seconds,
        alarms=report.alarms,
        protocols=protocols,
        galleries=[
            {
                "gallery": gallery,
                "originals": [Cell(data_uri(p.original), f"client {p.client}", True) for p in gallery.pictures],
                "rows": [(name, cells(gallery, name)) for name in gallery.pictures[0].seen],
            }
            for gallery in galleries
        ],
        bars=[(name, bars(report.findings, name)) for name in protocols],
        titles=leakage.TITLES,
        rows=leakage.rows(),
    )
