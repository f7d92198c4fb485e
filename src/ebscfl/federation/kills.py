"""The kill matrix: every role of a real federation dies by signal 9 at every phase, and the run goes on.

One federation of real processes (key centre, SuperLink, ServerApp, guarded SuperNodes with their ClientApps) trains
through all cases. Each halts a process at the phase (`stops`), kills the role with all it has started, starts it again
as an operator would, and lets the run go on. At the end every step must have summed every client, the key centre must
have released each step once, and the accuracies must be those of an undisturbed run.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ebscfl.config import load_preset
from ebscfl.errors import UsageError
from ebscfl.federation import stops
from ebscfl.federation.demo import Demo
from ebscfl.federation.processes import Children, ProcessFailed
from ebscfl.federation.site import SiteSettings
from ebscfl.federation.superlink import superlink_command
from ebscfl.federation.training import Training
from ebscfl.flower.guard import RUNNER
from ebscfl.protocol.rounds import training_round_of

Say = Callable[[str], None]
KEY_CENTRE, SERVER, SUPERLINK, CLIENT = "key centre", "server", "SuperLink", "client"
ROLES = (KEY_CENTRE, SERVER, SUPERLINK, CLIENT)
ONCE = (stops.BEFORE_ENROLMENT, stops.ENROLLED)
"""Phases a client passes once in its life; the others come in every step."""
PHASES = (*ONCE, stops.ENCODED, stops.UPLOADED, stops.RELEASED)
TOLERANCE = 0.5
"""Points of accuracy: two runs of `sealed` differ by the rounding of uploads, measured at 0.03."""


class Kill(NamedTuple):
    """One case."""

    role: str
    phase: str


MATRIX = tuple(Kill(role, phase) for phase in PHASES for role in ROLES)


@dataclass
class Case:
    """How one case went."""

    kill: Kill
    step: int
    seconds: float = 0.0
    updates_lost: int = 0


class KillSite(Demo):
    """A demo whose ServerApp and ClientApps have stopping points."""

    def __init__(self, home: Path, settings: SiteSettings, say: Say) -> None:
        self._stops = home.resolve() / "stops"
        self._stops.mkdir(parents=True)
        super().__init__(home, settings, say)
        self.environment[stops.VARIABLE] = str(self._stops)
        self.run = ""
        _write_script(self.home / "runners" / "flwr-serverapp")

    def start_link(self, children: Children) -> None:
        path = os.pathsep.join((str(self.home / "runners"), self.environment["PATH"]))
        children.start("superlink", superlink_command(self.server, self.link_port), {"PATH": path})
        self.wait_for_link(children)

    def prepare_client(self, directory: Path) -> None:
        _write_script(directory / "runners" / RUNNER)

    def arm(self, point: str) -> None:
        """The next process that comes there halts."""
        (self._stops / point).touch()

    def halted(self, point: str) -> bool:
        """Whether a process stands there."""
        return self._reached(point).exists()

    def let_go(self, point: str) -> None:
        """The process there, if it still lives, goes on."""
        self._reached(point).unlink()

    def strike(self, children: Children, role: str, client: int) -> None:
        """Kill a role with signal 9 and start it again."""
        if role == KEY_CENTRE:
            children.kill("kdc")
            self.start_kdc(children)
        elif role == CLIENT:
            children.kill(f"client-{client}")
            self.start_client(children, client)
        elif role == SUPERLINK:
            children.kill("superlink")  # the ServerApp is its child and dies with it
            self.start_link(children)
            self.run = self.submit(children)
        else:
            _kill_server_app(children)
            self.run = self.submit(children)

    def wait(self, children: Children, condition: Callable[[], bool], what: str) -> None:
        """Until ``condition()``; a run that Flower has ended before is an error."""
        end, looked = time.monotonic() + self.settings.timeout_s, time.monotonic()
        while not condition():
            children.check()
            if time.monotonic() > looked + 15.0:
                looked = time.monotonic()
                state = self.state_of(children, self.run)
                if state.startswith("finished") and not condition():
                    # A run that was about to start when the SuperLink died starts with the next SuperLink, and the one
                    # submitted after it is refused: there is one server a federation.
                    others = self.unfinished(children)
                    if not others:
                        raise ProcessFailed(f"the run ended ({state}) before {what}; see {self.home / 'logs'}")
                    self.run = others[0]
            if time.monotonic() > end:
                raise ProcessFailed(f"{what} did not happen in {self.settings.timeout_s:.0f} s; see {self.home}")
            time.sleep(0.1)

    def _reached(self, point: str) -> Path:
        return self._stops / f"{point}.reached"


def run_kills(
    home: Path, kills: Sequence[Kill] = MATRIX, *, nodes: int = 4, say: Say = lambda text: None
) -> dict[str, Any]:
    """Play the cases below ``home``; everything that was started is stopped when this returns or raises."""
    early, later = ([k for k in kills if (k.phase in ONCE) is once] for once in (True, False))
    _check(early, nodes)
    steps = len(later) + 1
    sets = ("data.groups=2", "attacks=[]", f"secure.quorum={max(2, nodes // 2 + 1)}")
    site = KillSite(home, SiteSettings("smoke", nodes, steps, timeout_s=400.0, sets=sets), say)
    started, cases = time.monotonic(), []
    with Children(site.home / "logs", {**site.environment, "OMP_NUM_THREADS": "1"}) as children:
        site.start_all(children)
        hosts = {kill: _host(i, kill, early, nodes) for i, kill in enumerate(early)}
        for kill, client in hosts.items():
            site.arm(f"{kill.phase}.{client}")
        site.run = site.submit(children)
        for kill in early:
            cases.append(_play(site, children, kill, hosts[kill], 1))
        site.wait(children, lambda: len(site.lines()) >= 1, "step 1")
        for step, kill in enumerate(later, start=2):
            client = nodes - 1 if kill.role == CLIENT else 0
            site.arm(f"{kill.phase}.{client}" if kill.phase == stops.ENCODED else kill.phase)
            case = _play(site, children, kill, client, step)
            site.wait(children, lambda step=step: len(site.lines()) >= step, f"step {step}")  # type: ignore[misc]
            cases.append(case)
        site.wait(children, (site.server / "results.json").exists, "the end of the run")
    return document_of(site, cases, round(time.monotonic() - started, 1))


def _play(site: KillSite, children: Children, kill: Kill, client: int, step: int) -> Case:
    point = f"{kill.phase}.{client}" if kill.phase in (*ONCE, stops.ENCODED) else kill.phase
    site.wait(children, lambda: site.halted(point), f"phase {kill.phase!r} of step {step}")
    site.say(f"step {step}, {kill.phase}: killing the {kill.role} (signal 9)")
    started = time.monotonic()
    site.strike(children, kill.role, client)
    site.let_go(point)
    return Case(kill, step, round(time.monotonic() - started, 1))


def _host(index: int, kill: Kill, early: Sequence[Kill], nodes: int) -> int:
    """The client at whose enrolment the case is played: the last one for its own death, others in turn."""
    if kill.role == CLIENT:
        return nodes - 1
    return sum(other.phase == kill.phase and other.role != CLIENT for other in early[:index])


def _check(early: Sequence[Kill], nodes: int) -> None:
    for phase in ONCE:
        if sum(kill.phase == phase for kill in early) > nodes:
            raise UsageError(f"{nodes} clients enrol once each: there are more cases {phase!r} than that")


def document_of(site: Demo, cases: Sequence[Case], seconds: float) -> dict[str, Any]:
    """What became of the cases of a finished run, one a step."""
    lines, released = site.lines(), site.released() or []
    nodes, steps = site.settings.nodes, site.settings.steps
    for case in cases:
        case.updates_lost = nodes - len(lines[case.step - 1]["included"])
    times = Counter(training_round_of(round_id) for round_id in released)
    gap = max(abs(a - line["accuracy_own"]) for a, line in zip(undisturbed(site.settings), lines, strict=True))
    whole = len(lines) == steps and set(times) == set(range(1, steps + 1)) and gap <= TOLERANCE
    survived = [whole and case.updates_lost == 0 and times[case.step] == 1 for case in cases]
    return {
        "cases": len(cases),
        "faults_injected": len(cases),
        "faults_survived": sum(survived),
        "updates_lost": sum(nodes - len(line["included"]) for line in lines),
        "released_twice": sum(count - 1 for count in times.values()),
        "rounds": len(lines),
        "largest_difference_of_accuracy": round(gap, 4),
        "seconds": seconds,
        "failed": [" at ".join(case.kill) for case, good in zip(cases, survived, strict=True) if not good],
        "played": [f"{case.kill.role} at {case.kill.phase}" for case in cases],
    }


def undisturbed(settings: SiteSettings) -> list[float]:
    """Accuracy after each step of the same training by the rule itself, without roles, network and faults."""
    config = settings.config()
    training = Training(load_preset(settings.preset, (*settings.sets, f"data.clients={settings.nodes}",
                                                      f"rounds={config.rounds}", "protocol=direct")))  # fmt: skip
    state, found = training.start(), []
    for step in range(1, settings.steps + 1):
        state, _ = training.cell.algorithm.round(training.cell.env, state, step)
        found.append(training.evaluate(state, step).own)
    return found


def _write_script(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(stops.script(path.name), encoding="ascii")
    path.chmod(0o755)


def _kill_server_app(children: Children) -> None:
    """The ServerApp alone; the SuperLink that started it lives on."""
    found = [pid for pid in children.family("superlink") if b"flwr-serverapp" in _command_line(pid)]
    if not found:
        raise ProcessFailed("there is no ServerApp to kill")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
