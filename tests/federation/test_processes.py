"""Processes are started in groups of their own, watched, started again where asked, and stopped to the last."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ebscfl.errors import DependencyError
from ebscfl.federation.processes import Children, ProcessFailed, flower_command, free_ports, listens

FAMILY = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']); "
FAMILY += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], start_new_session=True); "
FAMILY += "print('up', flush=True); time.sleep(99)"


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_whole_family_is_killed(tmp_path: Path):
    with Children(tmp_path, os.environ) as children:
        for name in ("one", "two"):
            children.start(name, [sys.executable, "-c", FAMILY])
            children.wait_for(lambda name=name: "up" in children.log(name).read_text(), "the start", timeout_s=30)
        groups = [children.pid("one"), children.pid("two")]
        assert len(children.family("one")) == len(children.family("two")) == 3  # one of them in a session of its own
        children.kill("one")
        assert children.family("one") == []
        children.wait_for(lambda: gone(groups[0]), "the death of the family", timeout_s=10)
        assert not gone(groups[1])
        assert len(children.family("two")) == 3
        assert any(os.getpgid(pid) != groups[1] for pid in children.family("two"))
    end = time.monotonic() + 10
    while not gone(groups[1]) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(groups[1])
    assert children.family("two") == []


def test_a_child_that_was_never_noted_is_stopped_too(tmp_path: Path):
    """Ctrl-C may come between the start of a process and the line that notes it."""
    with Children(tmp_path, os.environ) as children:
        children.start("one", [sys.executable, "-c", FAMILY])
        children.wait_for(lambda: len(children.family("one")) == 3, "the start", timeout_s=30)
        process = children._running.pop("one")
    assert process.wait(10) == -signal.SIGKILL
    assert children.family("one") == []


def test_an_end_is_noticed_or_repaired(tmp_path: Path):
    with Children(tmp_path, os.environ) as children:
        children.start("short", [sys.executable, "-c", "print('up')"], again_after_s=0.05)
        three = lambda: children.log("short").read_text().count("up") >= 3  # noqa: E731
        children.wait_for(three, "three starts", timeout_s=30, pause_s=0.02)
        children.start("fatal", [sys.executable, "-c", "raise SystemExit(3)"])
        with pytest.raises(ProcessFailed, match=r"exit code 3; see .*fatal\.log"):
            children.wait_for(lambda: False, "nothing", timeout_s=30)


def test_runs_and_waits_report_failure(tmp_path: Path):
    with Children(tmp_path, os.environ) as children:
        assert children.run("fine", [sys.executable, "-c", "print(6 * 7)"]) == "42\n"
        with pytest.raises(ProcessFailed, match="wrong failed with exit code 1"):
            children.run("wrong", [sys.executable, "-c", "raise SystemExit('no')"])
        with pytest.raises(ProcessFailed, match="did not happen within"):
            children.wait_for(lambda: False, "the impossible", timeout_s=0.05, pause_s=0.01)


def test_ports_are_free_and_commands_are_found():
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert not any(listens(port) for port in ports)
    with pytest.raises(DependencyError, match=r"ebscfl\[federation\]"):
        flower_command("no-such-flower-command")
