"""Real processes of a federation on this machine: started in groups of their own, logged to files, stopped to the last.

A child and everything it starts carry a mark in their environment, so that killing it with signal 9 takes all of it,
and nothing that somebody else started. A process group is not enough: Flower starts its runners, and Ray its workers,
in sessions of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ebscfl import rng
from ebscfl.errors import DependencyError, EbscflError

STOP_S = 10.0
KILL_S = 5.0
MARK = "EBSCFL_STARTED_AS"


class ProcessFailed(EbscflError):
    """A process of the federation ended or did not come up; the message names its log."""


class Children:
    """Started processes by name."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._again: dict[str, tuple[Callable[[], None], float]] = {}
        self._ended: dict[str, float] = {}
        self._mark = f"{os.getpid()}-{rng.os_random(8).hex()}"
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        again_after_s: float | None = None,
    ) -> None:
        """Start ``command``; what it prints goes to ``<logs>/<name>.log``.

        again_after_s: start it again when it ends by itself, as a service manager would.
        """
        if again_after_s is not None:
            self._again[name] = (partial(self.start, name, command, environment), again_after_s)
        with open(self.log(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self._environment, **(environment or {}), MARK: self._marked(name)}, start_new_session=True,
            )  # fmt: skip

    def run(self, name: str, command: Sequence[str], *, timeout_s: float = 120.0) -> str:
        """Run ``command`` to its end and return what it printed."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self._environment, timeout=timeout_s, text=True, check=False,
        )  # fmt: skip
        with open(self.log(name), "a", encoding="utf-8") as log:
            log.write(done.stdout)
        if done.returncode != 0:
            raise ProcessFailed(f"{name} failed with exit code {done.returncode}; see {self.log(name)}")
        return done.stdout

    def kill(self, name: str) -> None:
        """Signal 9 to the process and everything it started; nothing starts it again."""
        self._again.pop(name, None)
        self._signal(name, signal.SIGKILL)
        self._running[name].wait()
        end = time.monotonic() + KILL_S
        quiet = 0  # looks that found nobody: a process in the middle of an exec shows no environment
        while quiet < 3 and time.monotonic() < end:
            quiet = 0 if self.family(name) else quiet + 1
            if quiet == 0:
                self._signal(name, signal.SIGKILL)
            time.sleep(0.05)
        del self._running[name]

    def stop_all(self) -> None:
        """End everything: politely first, then not."""
        self._again.clear()
        names = list(self._running)
        for name in names:
            self._signal(name, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and any(self.family(name) for name in names):
            for name in names:
                self._running[name].poll()
            time.sleep(0.05)
        for name in names:
            self.kill(name)
        self._sweep()

    def _sweep(self) -> None:
        """A signal may have come between a child's start and its being noted: its mark tells. Looks twice."""
        for _ in range(2):
            time.sleep(0.1)
            for pid, environment in _environments():
                if f"{MARK}={self._mark}-".encode() in environment:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def family(self, name: str) -> list[int]:
        """The child and everything it started that is still there."""
        mark = f"{MARK}={self._marked(name)}".encode()
        return [pid for pid, environment in _environments() if mark in environment.split(b"\0")]

    def check(self) -> None:
        """Raise if one has ended by itself and is not to be started again."""
        for name, process in list(self._running.items()):
            if process.poll() is None:
                continue
            if name not in self._again:
                raise ProcessFailed(f"{name} ended with exit code {process.returncode}; see {self.log(name)}")
            start, pause = self._again[name]
            if time.monotonic() > self._ended.setdefault(name, time.monotonic()) + pause:
                del self._ended[name]
                start()

    def wait_for(self, condition: Callable[[], bool], what: str, *, timeout_s: float, pause_s: float = 0.2) -> None:
        """Wait until ``condition()``, while all processes live."""
        end = time.monotonic() + timeout_s
        while not condition():
            self.check()
            if time.monotonic() > end:
                raise ProcessFailed(f"{what} did not happen within {timeout_s:.0f} s; the logs are in {self._logs}")
            time.sleep(pause_s)

    def pid(self, name: str) -> int:
        """The process's number."""
        return self._running[name].pid

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self._logs / f"{name}.log"

    def _marked(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _signal(self, name: str, number: int) -> None:
        group = self._running[name].pid  # its own, made at its start
        others = self.family(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) != group:
                    os.kill(pid, number)


def _environments() -> Iterator[tuple[int, bytes]]:
    """What the processes we may look at were started with. Empty where there is no /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(entry.name), (entry / "environ").read_bytes()


def flower_command(name: str) -> str:
    """The path of one of Flower's commands beside this Python, or on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DependencyError(f"{name} is not installed: pip install 'ebscfl[federation]'")
    return found


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def listens(port: int) -> bool:
    """Whether somebody answers on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
