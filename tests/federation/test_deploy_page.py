"""Every command of docs/how-to-deploy.md, in order, on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from ebscfl.federation.processes import Children, free_ports, listens
from ebscfl.federation.superlink import flower_environment

PAGE = Path(__file__).parents[2] / "docs" / "how-to-deploy.md"
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHIM = """#!/bin/sh
case "$1" in
  kdc) shift; exec "{python}" -m ebscfl.cli_kdc "$@" ;;
  client) exec "{python}" -m ebscfl.cli_kdc "$@" ;;
  federation) shift; exec "{python}" -m ebscfl.cli_federation "$@" ;;
esac
exit 2
"""


@pytest.mark.slow
def test_every_command_of_the_page(tmp_path: Path):
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    kdc, metrics, link, one, two = free_ports(5)
    local = {
        "kdc.example": "127.0.0.1", "server.example": "127.0.0.1", "0.0.0.0": "127.0.0.1", "@PWD@": str(tmp_path),
        "9443": str(kdc), "9444": str(metrics), "9092": str(link), "9094": str(one), "9095": str(two),
    }  # fmt: skip
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "ebs-cfl").write_text(SHIM.format(python=sys.executable))
    (shims / "ebs-cfl").chmod(0o755)
    environment = flower_environment(tmp_path / "flower")
    environment["PATH"] = os.pathsep.join((str(shims), environment["PATH"]))
    ports = {"kdc": kdc, "superlink": link}
    ran = 0
    with Children(tmp_path / "logs", environment) as children:
        for language, info, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            for there, here in local.items():
                body = body.replace(there, here)
            if language == "toml":
                (tmp_path / info).parent.mkdir(exist_ok=True)
                (tmp_path / info).write_text(body)
            elif language == "sh" and info.startswith("service="):
                name = info.removeprefix("service=")
                children.start(name, ["sh", "-e", "-c", f"cd {tmp_path}\n{body}"], again_after_s=5.0)
                if name in ports:
                    children.wait_for(lambda name=name: listens(ports[name]), name, timeout_s=120)
                ran += 1
            elif language == "sh":
                children.run(f"block-{ran}", ["sh", "-e", "-c", f"cd {tmp_path}\n{body}"], timeout_s=300)
                ran += 1
        results = tmp_path / "server" / "results.json"
        children.wait_for(results.exists, "the end of the run", timeout_s=600)
    document = json.loads(results.read_text())
    assert document["steps"] == 2
    assert document["results"][0]["method"] == "rfca"
    assert ran == 14


def test_the_page_has_units_and_containers():
    languages = {language for language, _, _ in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}
    assert {"ini", "yaml", "sh", "toml"} <= languages
