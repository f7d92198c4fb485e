"""Every command of docs/how-to-deploy.md on the loopback interface: the page's own, its units', its containers'."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ebscfl.federation.processes import Children, free_ports, listens
from ebscfl.federation.superlink import flower_environment

PAGE = (Path(__file__).parents[2] / "docs" / "how-to-deploy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PREFIX = "/opt/ebscfl/bin/"
OF_UNIT = {"ebscfl-kdc.service": "kdc", "ebscfl-superlink.service": "superlink", "ebscfl-client.service": "client0"}


def blocks(language: str) -> dict[str, str]:
    """Info strings and bodies."""
    return {info: body for found, info, body in BLOCKS if found == language}


def service_command(name: str) -> str:
    """The last line of the page's block that starts a service by hand."""
    return blocks("sh")[f"service={name}"].strip().splitlines()[-1]


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(blocks("ini")[name])
    return parsed


def unit_environment(name: str) -> dict[str, str]:
    """All Environment= lines of a unit (a parser of .ini files keeps only the last)."""
    lines = re.findall(r"^Environment=(.*)$", blocks("ini")[name], re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line))


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="Flower brings PyYAML")
    document: dict[str, Any] = yaml.safe_load(blocks("yaml")["compose.yaml"])["services"]
    return document


class Machine:
    """One machine that stands for all: names, ports and paths of the page replaced, the true `ebs-cfl` on the PATH."""

    def __init__(self, home: Path) -> None:
        kdc, metrics, link, one, two = free_ports(5)
        self.home = home
        self.ports = {"kdc": kdc, "superlink": link}
        self.local = {
            "kdc.example": "127.0.0.1", "server.example": "127.0.0.1", "0.0.0.0": "127.0.0.1", "@PWD@": str(home),
            "9443": str(kdc), "9444": str(metrics), "9092": str(link), "9094": str(one), "9095": str(two),
        }  # fmt: skip
        self.bin = home / "bin"
        self.bin.mkdir()
        (self.bin / "ebs-cfl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ebscfl.cli "$@"\n')
        (self.bin / "ebs-cfl").chmod(0o755)
        for script in Path(sys.executable).parent.glob("fl*"):
            (self.bin / script.name).symlink_to(script)
        self.environment = flower_environment(home / "flower")
        self.environment["PATH"] = os.pathsep.join((str(self.bin), self.environment["PATH"]))

    def here(self, text: str) -> str:
        for there, mine in self.local.items():
            text = text.replace(there, mine)
        return text

    def serve(self, children: Children, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start a service in its working directory, again whenever it ends, as a service manager does."""
        line = f"cd {shlex.quote(str(self.home))} && exec {shlex.join(command)}"
        children.start(name, ["sh", "-e", "-c", line], environment, again_after_s=5.0)
        if name in self.ports:
            children.wait_for(lambda: listens(self.ports[name]), name, timeout_s=120)

    def run(self, children: Children, name: str, body: str) -> None:
        children.run(name, ["sh", "-e", "-c", f"cd {shlex.quote(str(self.home))}\n{self.here(body)}"], timeout_s=300)


@pytest.mark.slow
def test_every_command_of_the_page(tmp_path: Path):
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    machine, ran = Machine(tmp_path), 0
    results = tmp_path / "server" / "results.json"
    with Children(tmp_path / "logs", machine.environment) as children:
        for language, info, body in BLOCKS:
            if language == "toml":
                (tmp_path / info).parent.mkdir(exist_ok=True)
                (tmp_path / info).write_text(machine.here(body))
            elif language == "sh" and info.startswith("service="):
                name = info.removeprefix("service=")
                machine.serve(children, name, ["sh", "-e", "-c", machine.here(body)], {})
                ran += 1
            elif language == "sh" and "simulate" in body:
                break  # all of the federation was said; test_simulation plays the rest
            elif language == "sh":
                machine.run(children, f"block-{ran}", body)
                ran += 1
        children.wait_for(results.exists, "the end of the run", timeout_s=600)
    assert json.loads(results.read_text())["steps"] == 2
    assert json.loads(results.read_text())["results"][0]["method"] == "rfca"
    assert ran == 14
    results.unlink()
    (tmp_path / "server" / "superlink.sqlite").unlink()  # or it waits a minute for heartbeats of the nodes it knew
    with Children(tmp_path / "logs", machine.environment) as children:  # the same machine after a restart, by units
        start_by_units_and_containers(machine, children)
        machine.run(children, "again", blocks_that_run().replace("steps=2", "steps=3"))
        children.wait_for(results.exists, "the end of the third step", timeout_s=600)
    assert json.loads(results.read_text())["steps"] == 3
    lines = (tmp_path / "server" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def start_by_units_and_containers(machine: Machine, children: Children) -> None:
    """Key centre and client 0 with their containers' commands, SuperLink and client 1 with their units' ExecStart."""
    places = {"/var/lib/ebscfl": str(machine.home), PREFIX.rstrip("/"): str(machine.bin)}

    def moved(text: str) -> str:
        for there, here in places.items():
            text = text.replace(there, here)
        return machine.here(text)

    def start(name: str) -> list[str]:
        return shlex.split(moved(unit(name)["Service"]["ExecStart"]))

    machine.serve(children, "kdc", [machine.here(word) for word in compose()["kdc"]["command"]], {})
    environment = {key: moved(value) for key, value in unit_environment("ebscfl-superlink.service").items()}
    machine.serve(children, "superlink", start("ebscfl-superlink.service"), environment)
    machine.run(children, "register", "\n".join(lines_of_the_page("export FLWR_", "flwr supernode register")))
    machine.serve(children, "client0", [machine.here(word) for word in compose()["client0"]["command"]], {})
    other = {"client0": "client1", machine.local["9094"]: machine.local["9095"]}
    words = start("ebscfl-client.service")
    machine.serve(children, "client1", [other.get(word, word) for word in words], {})


def lines_of_the_page(*starts: str) -> list[str]:
    """Lines of shell commands that begin so, each once."""
    lines = [line for language, _, body in BLOCKS if language == "sh" for line in body.splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith(starts)))


def blocks_that_run() -> str:
    (body,) = [body for language, _, body in BLOCKS if language == "sh" and "flwr run app" in body]
    return body


def test_units_start_what_the_page_starts():
    assert set(blocks("ini")) == set(OF_UNIT)
    for name, service in OF_UNIT.items():
        assert unit(name)["Service"]["ExecStart"] == PREFIX + service_command(service)
        assert unit(name)["Service"]["Restart"] == "always"
    exports = dict(word.split("=") for word in shlex.split(blocks("sh")["service=superlink"].splitlines()[0])[1:])
    environment = unit_environment("ebscfl-superlink.service")
    assert set(exports) | {"PATH"} == set(environment)
    assert all(environment[key] == value for key, value in exports.items() if key != "FLWR_HOME")


def test_containers_start_what_the_page_starts():
    services = compose()
    assert set(services) == {"kdc", "client0"}
    for name, service in services.items():
        assert shlex.join(service["command"]) == service_command(name)
        assert service["volumes"] == [f"./{name}:/state/{name}"]  # and WORKDIR is /state
        assert service["read_only"]
    assert services["kdc"]["ports"] == ["9443:9443"]
    assert "WORKDIR /state" in blocks("dockerfile")["Dockerfile"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", sorted(OF_UNIT))
@pytest.mark.parametrize("broken", [False, True])
def test_systemd_takes_the_units(name: str, broken: bool, tmp_path: Path):
    """The programs are not installed here, so their place is another's; an unknown key is noticed."""
    text = re.sub(rf"{PREFIX}\S+", "/bin/true", blocks("ini")[name]).replace("User=ebscfl", "User=root")
    (tmp_path / name).write_text(text.replace("Restart=always", "Restart=forever") if broken else text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert bool(complaints) == broken, done.stderr
