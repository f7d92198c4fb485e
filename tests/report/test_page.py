"""The page as a whole: well-formed, self-contained, escaped, equal to results.json, and alive in a real browser."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from synthetic_run import ATTACKERS, CONFIG, METHODS, write_run

from ebscfl.errors import DataError
from ebscfl.report import write_report
from ebscfl.report.figures import MAX_EVENTS
from ebscfl.report.page import MEASURED_ON, sum_by_name
from ebscfl.report.tables import percent

SCREENSHOT = Path(__file__).parents[2] / "scripts" / "screenshot"
VOID = {"meta", "link", "input", "br", "img"}
SECTIONS = ("results", "accuracy", "inside", "cost", "privacy", "reproduce")
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """Collects elements and fails on unbalanced tags."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data):
        for _, attrs in self.open:
            if "id" in attrs:
                self.texts[attrs["id"]] = self.texts.get(attrs["id"], "") + data

    def ids(self):
        return [attrs["id"] for _, attrs in self.elements if "id" in attrs]

    def tags(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


class Table(HTMLParser):
    """Reads the headline table back: {(method, attack): {key: text}}."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.key, self.in_value = {}, None, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "tr" and "data-method" in attrs:
            self.row = self.rows.setdefault((attrs["data-method"], attrs["data-attack"]), {})
        self.key = attrs.get("data-key", self.key)
        self.in_value = attrs.get("class") == "value"

    def handle_data(self, data):
        if self.in_value:
            self.row[self.key] = data
            self.in_value = False


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    run_dir = write_run(tmp_path_factory.mktemp("page") / "run")
    write_report(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def text(run_dir):
    return (run_dir / "report.html").read_text(encoding="utf-8")


def test_balanced_complete_and_of_modest_size(text):
    page = Page(text)
    assert set(SECTIONS) <= set(page.ids())
    assert len(page.ids()) == len(set(page.ids())), "an id occurs twice"
    anchors = [a["href"] for a in page.tags("a")]
    assert sorted(anchors) == sorted(f"#{name}" for name in SECTIONS)
    assert len(text.encode()) < 2 * 2**20


def test_every_reference_resolves(text):
    ids = set(Page(text).ids())
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= ids
    assert {attrs["for"] for attrs in Page(text).tags("label")} <= ids


def test_nothing_comes_from_elsewhere(text):
    page = Page(text)
    for tag, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "action"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), f"<{tag} {name}>"
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    (policy,) = (a["content"] for a in page.tags("meta") if "content" in a and "default-src" in a["content"])
    assert policy.startswith("default-src 'none'")


def test_charts_speak_and_forms_have_names(text):
    page = Page(text)
    charts = [a for a in page.tags("svg") if a.get("class") == "chart"]
    assert charts
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in charts)
    assert len(page.tags("input")) == len(page.tags("label"))
    assert page.texts["results-h"] == "Final numbers"
    assert MEASURED_ON["own"] in page.texts["results"]
    assert all(word in page.texts["glossary"] for word in ("FA", "MA", "NA", "ASR", "AIR points", "AIR printed"))


def test_every_method_has_every_chart(text):
    labels = [a["aria-label"] for a in Page(text).tags("svg") if "aria-label" in a]
    names = ("FedAvg", "IFCA", "FLTrust", "RFCA")
    for start in ("Weight of every client", "Accuracy of every cluster", "Confusion matrix"):
        for name in names:
            assert sum(label.startswith(start) and name in label for label in labels) == 3  # attacks and none
    for name in ("IFCA", "RFCA"):
        assert sum(label.startswith("Cluster every client") and name in label for label in labels) == 3
    assert text.count("One model for all clients: there is nothing to choose.") == 2 * 3
    assert text.count('class="attacker"') == len(ATTACKERS) * (4 + 2) * 2  # weight maps and cluster maps, two attacks


def test_table_equals_results_json(run_dir, text):
    shown = Table(text).rows
    written = json.loads((run_dir / "results.json").read_text())["results"]
    assert len(shown) == len(written) == len(METHODS) * 3
    for row in written:
        cells = shown[row["method"], row["attack"]]
        for key in ("fa", "ma", "na", "asr", "air_points", "air_printed"):
            assert cells[key] == percent(row[key])
        assert cells["attacker_weight_share"] == percent(row["attacker_weight_share"])


def test_config_and_command_are_exact(run_dir, text):
    page = Page(text)
    assert page.texts["config"] == CONFIG
    assert page.texts["command"] == json.loads((run_dir / "run.json").read_text())["reproduce"]
    assert {a["data-copy"] for a in page.tags("button")} == {"command", "config"}


def test_same_run_same_page(run_dir, text):
    write_report(run_dir)
    assert (run_dir / "report.html").read_text(encoding="utf-8") == text


def test_optional_parts_stay_away(tmp_path):
    text = write_report(write_run(tmp_path / "run", rounds=3, protocol=False)).read_text()
    assert "privacy" not in Page(text).ids()
    assert "Bytes per message" not in text
    assert "Time per role" not in text
    assert "Time per phase" in text
    assert "Backdoor" not in text


def rewrite(run_dir, change):
    path = run_dir / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(r)) + "\n" for r in records))


def test_backdoor_shows_up_when_recorded(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=3)
    rewrite(run_dir, lambda r: r | {"backdoor": 12.25})
    text = write_report(run_dir).read_text()
    assert Table(text).rows["rfca", "sine"]["backdoor"] == percent(12.25)
    assert "Backdoor success of RFCA" in text
    assert "Backdoor" in Page(text).texts["glossary"]


def test_hostile_text_is_escaped_everywhere(tmp_path):
    hostile = dict.fromkeys(("preset", "run_id", "reproduce", "torch", "device"), HOSTILE)
    run_dir = write_run(tmp_path / "run", rounds=3, **hostile)
    (run_dir / "config.toml").write_text(f"name = '''{HOSTILE}'''\n")
    renamed = {"method": {"rfca": HOSTILE}, "attack": {"sine": HOSTILE}}

    def rename(record):
        return record | {k: names.get(record[k], record[k]) for k, names in renamed.items()}

    def poison(record):
        record = rename(record)
        if record["kind"] == "round" and record["round"]:
            record |= {"events": [HOSTILE], "seconds": {HOSTILE: 1.0}, "bytes": {HOSTILE: 1}}
        return record

    rewrite(run_dir, poison)
    results = json.loads((run_dir / "results.json").read_text())
    results["results"] = [rename(row) for row in results["results"]]
    (run_dir / "results.json").write_text(json.dumps(results))
    text = write_report(run_dir).read_text()
    page = Page(text)
    assert len(page.tags("script")) == 1
    assert not page.tags("img")
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert page.texts["config"] == f"name = '''{HOSTILE}'''\n"
    assert page.texts["command"] == HOSTILE
    assert (HOSTILE, HOSTILE) in Table(text).rows


def test_partial_run_has_a_banner_and_what_was_recorded(tmp_path):
    text = write_report(write_run(tmp_path / "run", rounds=6, stop_after=2)).read_text()
    Page(text)
    assert "Partial run (interrupted)" in text
    assert "stopped after round 2" in text
    assert "Not there yet: the cell has not finished." in text


def test_run_stopped_before_anything_was_written(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=3, stop_after=1)
    (run_dir / "metrics.jsonl").unlink()
    page = Page(write_report(run_dir).read_text())
    assert set(page.ids()) >= {"results", "reproduce"}


def test_complete_run_has_no_banner(text):
    assert "Partial run" not in text


def test_bad_run_leaves_an_older_page_alone(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=3)
    before = write_report(run_dir).read_bytes()
    (run_dir / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        write_report(run_dir)
    assert (run_dir / "report.html").read_bytes() == before
    assert not (run_dir / "report.html.tmp").exists()


def test_long_events_are_cut(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=2)
    rewrite(run_dir, lambda r: r | ({"events": ["dropped"] * MAX_EVENTS} if r.get("round") else {}))
    text = write_report(run_dir).read_text()
    assert f"and {MAX_EVENTS} more in metrics.jsonl" in text  # two rounds of MAX_EVENTS each


def test_sum_by_name():
    assert sum_by_name([{"a": 1.0, "b": 2.0}, {"b": 3.0}, {}]) == {"a": 1.0, "b": 2.0 + 3.0}


def test_importing_the_report_does_not_import_plotting_or_templates():
    code = "import sys, ebscfl.report; print(sorted({'matplotlib', 'jinja2', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
def test_renders_in_chromium(run_dir, tmp_path, width, dark):
    out = tmp_path / "page.png"
    command = [sys.executable, str(SCREENSHOT), str(run_dir / "report.html"), str(out), "--width", str(width)]
    done = subprocess.run([*command, *(["--dark"] if dark else [])], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    image = Image.open(out).convert("RGB")
    assert image.width == width
    for top in range(0, image.height - 400, 400):  # every band of the page shows something
        band = image.crop((0, top, width, top + 400))
        assert len(band.getcolors(maxcolors=2**20) or range(99)) > 30, f"band at {top} is blank"
    backdrop = image.getpixel((1, 1))
    assert (sum(backdrop) < 3 * 64) == dark
    # The outermost columns are page margin: what runs over the right edge would show there.
    edge = image.crop((width - 3, 0, width, image.height)).getcolors(maxcolors=2**20)
    assert edge is not None
    assert len(edge) == 1


def find_browser():
    return next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
def test_nothing_is_wider_than_a_phone(run_dir, tmp_path):
    """A frame 390 pixels wide reports how wide its content wants to be, with every panel shown."""
    text = (run_dir / "report.html").read_text().replace("http-equiv", "data-off").replace(".panel{display:none}", "")
    probe = "<script>document.title = `${innerWidth} ${document.documentElement.scrollWidth}`</script>"
    inner = text.replace("</body>", f"{probe}</body>").replace("&", "&amp;").replace('"', "&quot;")
    listen = "document.body.dataset.sizes = document.querySelector('iframe').contentDocument.title"
    outer = tmp_path / "frame.html"
    outer.write_text(
        f'<!doctype html><body><iframe width="390" height="900" style="border:0" srcdoc="{inner}"></iframe>'
        f"<script>onload = () => {{ {listen} }}</script>"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    flags += ["--no-first-run", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command = [str(find_browser()), *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    sizes = re.search(r'data-sizes="(\d+) (\d+)"', done.stdout)
    assert sizes is not None
    assert sizes[1] == sizes[2] == "390"
