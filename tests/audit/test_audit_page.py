"""The page: self-contained, complete, its pictures are there and not blank, and it renders in a browser."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ebscfl.audit import leakage
from ebscfl.audit.inversion import MatchSettings
from ebscfl.audit.page import bars, data_uri, render
from ebscfl.audit.pictures import Gallery, convolutional_gallery, dense_gallery
from ebscfl.audit.record import Finding
from ebscfl.audit.run import AuditReport, run_audit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return run_audit(clients=6, clusters=2, dim=600, seed=2, rounds=4)


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return dense_gallery(1, clients=4)


@pytest.fixture(scope="module")
def page(report: AuditReport, gallery: Gallery) -> str:
    return render(report, [gallery])


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def test_pictures_are_there_and_not_blank(page: str, gallery: Gallery) -> None:
    found = pictures(page)
    assert len(found) == 4 * len(gallery.pictures)
    assert all(picture.shape == (84, 84) and picture.std() > 20 for picture in found)


def test_plain_and_paper_show_the_image_and_sealed_does_not(gallery: Gallery) -> None:
    for picture in gallery.pictures:
        assert picture.likeness("plain") > 0.999
        assert picture.likeness("paper") > 0.999
        assert abs(picture.likeness("sealed")) < 5 / 28  # noise of 784 pixels
    assert [picture.label for picture in gallery.pictures] == [0, 1, 2, 3]


def test_the_page_needs_no_network_and_its_tags_close(page: str) -> None:
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page

    void = {"meta", "link", "img", "br", "input", "hr", "col"}
    stack: list[str] = []

    class Closing(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in void:
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    parser = Closing()
    parser.feed(page)
    assert stack == []


def test_every_finding_and_every_leak_is_on_the_page(page: str, report: AuditReport) -> None:
    for name in report.settings.protocols:
        assert f"<h3>{name}</h3>" in page
    assert sum(len(bars(report.findings, name)) for name in report.settings.protocols) == len(report.findings)
    for row in leakage.rows():
        assert f"<td>{row[1]}</td>".replace("'", "&#39;") in page
    assert all(picture in page for picture in ("client 0", "client 3"))


def test_names_are_escaped(report: AuditReport, gallery: Gallery) -> None:
    evil = Finding("read", "plain", 1, 1, 1, 1.0, 0.5, 0.0, note="<script>alert(1)</script>")
    page = render(AuditReport(report.settings, (evil,), 1.0), [gallery])
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_an_alarm_is_shown(report: AuditReport, gallery: Gallery) -> None:
    leak = Finding("uploads", "sealed", 3, 6, 3, 1.0, 0.5, 0.0)
    page = render(AuditReport(report.settings, (leak,), 1.0), [gallery])
    assert "A protocol that promises to hide updates does not" in page
    assert "uploads recovers 3 of 6 updates" in page


def test_leakage_table_names_attacks_that_exist(report: AuditReport) -> None:
    names = {finding.name for finding in report.findings}
    for leak in leakage.LEAKS:
        assert all(part in names for part in leak.attack.split(", ") if part)
    table = leakage.markdown()
    assert table.count("\n") == len(leakage.LEAKS) + 2
    assert all(line.count("|") == len(leakage.COLUMNS) + 1 for line in table.splitlines())


def test_data_uri_is_the_picture() -> None:
    image = np.linspace(0, 1, 12).reshape(3, 2, 2)
    raw = base64.b64decode(data_uri(image, scale=1).split(",")[1])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(raw))), np.round(255 * image).transpose(1, 2, 0))


def test_convolutional_pictures(tmp_path: Path) -> None:
    # An empty data folder: no CIFAR-10, so that row is left out.
    settings = MatchSettings(steps=120)
    (found,) = convolutional_gallery(1, clients=2, data_dir=tmp_path, settings=settings, protocols=("paper", "sealed"))
    for picture in found.pictures:
        assert picture.likeness("paper") > 0.9
        assert picture.likeness("sealed") < 0.5


@pytest.mark.slow
def test_a_browser_draws_it(page: str, tmp_path: Path) -> None:
    if CHROMIUM is None:  # nothing to draw with here; the other tests still read every picture
        return
    (tmp_path / "audit.html").write_text(page)
    shot = tmp_path / "shot.png"
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
        "--window-size=1280,2400",
    ]
    profile, target = tmp_path / "profile", (tmp_path / "audit.html").as_uri()
    profile.mkdir()
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", f"--screenshot={shot}", target]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    drawn = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert drawn.shape == (2400, 1280, 3)
    # The red bars of plain and paper, and more than one shade in every tenth of the page.
    red, green, blue = drawn[..., 0], drawn[..., 1], drawn[..., 2]
    assert ((red > 150) & (green < 80) & (blue < 80)).sum() > 1000
    assert all(part.std() > 1 for part in np.array_split(drawn[:2000], 10))
