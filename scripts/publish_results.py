"""Put a finished run into results/ and its table into README: .venv/bin/python scripts/publish_results.py RUN NAME"""

import json
import os
import re
import sys
from pathlib import Path

from ebscfl.report.markdown import results_table

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Copy what reproduces the numbers, not where they were made."""
    run_dir, name = Path(sys.argv[1]), sys.argv[2]
    info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    folder = ROOT / "results" / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = ("preset", "seed", "reproduce", "seconds", "version", "python", "torch", "numpy", "device", "config_sha256")
    document = {key: info[key] for key in kept} | {"cores": os.cpu_count(), "results": results["results"]}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "config.toml").write_text((run_dir / "config.toml").read_text(encoding="utf-8"), encoding="utf-8")
    readme = ROOT / "README.md"
    table = f"<!-- results/{name} -->\n{results_table(document['results'])}\n<!-- end -->"
    pattern = rf"<!-- results/{name} -->.*?<!-- end -->"
    readme.write_text(re.sub(pattern, lambda _: table, readme.read_text(encoding="utf-8"), flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
