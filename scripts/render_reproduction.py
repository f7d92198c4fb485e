"""Render results/<experiment>/<scale>/results.md and docs/reproduction.md from the committed JSON."""

import json
import re
from pathlib import Path

from ebscfl.reproduce.accuracy import write_views
from ebscfl.reproduce.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Every committed document, then every marked table of the page."""
    for path in sorted((ROOT / "results").glob("*/*/results.json")):
        if path.parts[-3] in EXPERIMENTS:
            write_views(EXPERIMENTS[json.loads(path.read_text(encoding="utf-8"))["name"]], path.parent)
    page = ROOT / "docs" / "reproduction.md"

    def table(match: re.Match[str]) -> str:
        rendered = (ROOT / match[1] / "results.md").read_text(encoding="utf-8").strip()
        return f"<!-- {match[1]} -->\n{rendered}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- (results/[\w/-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
