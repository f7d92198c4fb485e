"""The fault harness: one federation on the loopback interface, broken in every way at every phase, and what was lost.

Each case plays whole rounds of `sealed` through real sockets, files and roles, breaks something on the way and checks
three things: the sums are those of the clients that took part, no update of a client that was up is missing, and the
key centre released every round at most once. Deaths are abrupt: the dying role's objects are dropped where they stand
and a new one starts from the files alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import EbscflError
from ebscfl.federation.client_agent import ClientAgent
from ebscfl.federation.journal import Event, Journal
from ebscfl.federation.loopback import DirectExchange, Loopback, answers_of
from ebscfl.federation.proxy import Fault, FaultProxy
from ebscfl.federation.rounds import Deadlines, RoundEnd, play
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.plain import rfca_round
from ebscfl.protocol.measure import example_round, relative_errors
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of
from ebscfl.rng import root_from_seed

CLIENTS, CLUSTERS, DIM = 4, 2, 50
TOLERANCE = 5e-3
"""Relative error of sealed sums (fixed point, stochastic rounding), as in the protocols' contract suite."""
QUICK = Deadlines(first_s=1.0, last_s=1.0, quorum=3, pause_s=0.001)
PHASES = ("start", "key centre's answer", "upload", "close")
EVENTS = {"start": Event.START, "key centre's answer": Event.ANSWER, "upload": Event.UPLOAD, "close": Event.CLOSE}


class Died(BaseException):
    """A role dies here; nothing of ours catches it."""


@dataclass(frozen=True)
class CaseResult:
    """What one case came to."""

    name: str
    faults: int
    survived: bool
    updates_lost: int
    released_twice: int
    note: str = ""


class Bench:
    """One federation with a run of rounds in it."""

    def __init__(self, home: Path) -> None:
        self.loop = Loopback(home, Setup("sealed", CLIENTS, CLUSTERS, DIM, b"run-tag!"))
        self.updates, self.clusters, self.server_updates = example_round(CLIENTS, CLUSTERS, DIM, root_from_seed(7))
        self.clients = {i: self.loop.client(i) for i in range(CLIENTS)}
        self.last_round = 0
        self.port: int | None = None

    def fresh(self) -> int:
        """The next round id."""
        self.last_round += 1
        return round_id_of(self.last_round)

    def journal(self) -> Journal:
        """The server's journal, opened as a new process would."""
        return Journal(self.loop.server_dir / "round.journal", durable=False)

    def server(self, journal: Journal | None = None) -> ServerAgent:
        """A server that has just come up."""
        return self.loop.agent(journal=journal or self.journal(), port=self.port)

    def reborn(self, client: int) -> ClientAgent:
        """A client that has just come up."""
        self.clients[client] = self.loop.client(client)
        return self.clients[client]

    def answer(self, round_id: int, client: int) -> bytes | None:
        """A client's upload."""
        return answers_of(self.clients, self.updates, self.clusters)(round_id, client)

    def play(
        self, agent: ServerAgent, answer: Callable[[int, int], bytes | None] | None = None, *, resumed: bool = False
    ) -> RoundEnd:
        """One round."""
        return play(
            agent, DirectExchange(answer or self.answer), range(CLIENTS), self.server_updates,
            fresh_round=self.fresh, deadlines=QUICK, resumed=resumed,
        )  # fmt: skip

    def check(self, end: RoundEnd, missing: tuple[int, ...] = ()) -> int:
        """Updates lost, after comparing the sums with plain RFCA over those who were up."""
        there = [i for i in range(CLIENTS) if i not in missing]
        lost = len(set(there) - set(end.outcome.included))
        got: npt.NDArray[Any] = np.asarray(end.outcome.aggregates)
        included = list(end.outcome.included)
        want, _ = rfca_round(self.updates[included], [self.clusters[i] for i in included], self.server_updates)
        if max(relative_errors(got, want)) > TOLERANCE:
            raise EbscflError("the sums are wrong")
        return lost


Case = Callable[[Bench], tuple[int, int, int]]
"""Breaks something; returns (faults injected, updates lost, rounds played to their end)."""


def server_dies(phase: str, occurrence: int) -> Case:
    """The server dies before it has written an event of this kind; the next one goes on from the files."""

    def case(bench: Bench) -> tuple[int, int, int]:
        journal, left = bench.journal(), [occurrence]
        append = journal.append

        def fatal(event: Event, client: int, data: bytes) -> None:
            if event is EVENTS[phase]:
                left[0] -= 1
                if left[0] == 0:
                    raise Died
            append(event, client, data)

        journal.append = fatal  # type: ignore[method-assign]
        try:
            bench.play(bench.server(journal))
        except Died:
            again = bench.server()
            resumed = again.resume()
            return 1, bench.check(bench.play(again, resumed=resumed)), 1
        raise EbscflError("the server did not die")

    return case


def kdc_dies(number: int, *, after: bool) -> Case:
    """The key centre dies before or after it has acted on the server's ``number``-th message."""

    def case(bench: Bench) -> tuple[int, int, int]:
        agent, count = bench.server(), [0]
        say = agent._line.say

        def fragile(message: bytes) -> tuple[bytes, ...]:
            count[0] += 1
            if count[0] != number:
                return say(message)
            if after:
                say(message)  # acted on, and the answer is lost with the process
            bench.loop.restart_service()
            return say(message)

        agent._line.say = fragile  # type: ignore[method-assign]
        return 1, bench.check(bench.play(agent)), 1

    return case


def client_dies(*, after_encoding: bool) -> Case:
    """A client dies before it has encoded, or between that and sending; it comes back when it is asked again."""

    def case(bench: Bench) -> tuple[int, int, int]:
        died: list[bytes | None] = []

        def answer(round_id: int, client: int) -> bytes | None:
            if client != 1 or died:
                data = bench.answer(round_id, client)
                if client == 1 and after_encoding and data != died[0]:
                    raise EbscflError("the client encoded twice under one round's keys")
                return data
            died.append(bench.answer(round_id, client) if after_encoding else None)
            bench.reborn(1)
            return None

        return 1, bench.check(bench.play(bench.server(), answer)), 1

    return case


def network(fault: Fault, way: str) -> Case:
    """Every tenth piece between server and key centre suffers ``fault``, through two rounds."""

    def case(bench: Bench) -> tuple[int, int, int]:
        def plan(piece: int, direction: str) -> Fault:
            return fault if direction == way and piece % 10 == 9 else Fault.NONE

        with FaultProxy(bench.loop.service.port, plan) as proxy:
            bench.port = proxy.port
            agent = bench.server()
            lost, rounds = 0, 0
            while rounds < 2 or (not proxy.injected and rounds < 12):
                lost += bench.check(bench.play(agent))
                rounds += 1
            bench.port = None
            return len(proxy.injected), lost, rounds

    return case


def upload_is_damaged(bench: Bench) -> tuple[int, int, int]:
    """An upload arrives cut; the client is asked again."""
    seen: list[int] = []

    def answer(round_id: int, client: int) -> bytes | None:
        data = bench.answer(round_id, client)
        seen.append(client)
        return data[:-9] if data and client == 2 and seen.count(2) == 1 else data

    return 1, bench.check(bench.play(bench.server(), answer)), 1


def client_stays_away(bench: Bench) -> tuple[int, int, int]:
    """A client never answers: the round ends without it, and it is back in the next."""
    agent = bench.server()
    end = bench.play(agent, lambda round_id, i: None if i == 3 else bench.answer(round_id, i))
    lost = bench.check(end, missing=(3,))
    return 1, lost + bench.check(bench.play(agent)), 2


def two_servers(bench: Bench) -> tuple[int, int, int]:
    """A second server comes up while the first is at work: one of them is served, the other stops."""
    old = bench.server()
    lost = bench.check(bench.play(old))
    new = bench.server(Journal(bench.loop.home / "second.journal", durable=False))
    try:
        bench.play(old)
    except EbscflError:
        return 1, lost + bench.check(bench.play(new)), 2
    raise EbscflError("two servers were served at once")


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for phase in PHASES:
        for occurrence in (1,) if phase == "start" else (1, 2):
            cases[f"server dies before {phase} {occurrence}"] = server_dies(phase, occurrence)
    for number, what in enumerate(("commitment", "opening", "scores", "release"), start=1):
        for after in (False, True):
            cases[f"key centre dies {'after' if after else 'before'} {what}"] = kdc_dies(number, after=after)
    for after in (False, True):
        cases[f"client dies {'after' if after else 'before'} encoding"] = client_dies(after_encoding=after)
    for fault in Fault:
        if fault is not Fault.NONE:
            for way in ("up", "down"):
                cases[f"network: {fault.value} {way}"] = network(fault, way)
    return cases | {
        "upload is damaged": upload_is_damaged,
        "client stays away": client_stays_away,
        "two servers at once": two_servers,
    }


CASES: dict[str, Case] = _cases()


def run_case(name: str, home: Path) -> CaseResult:
    """Play one case below ``home``."""
    bench = Bench(home)
    with bench.loop:
        faults, lost, rounds = CASES[name](bench)
        twice = max(0, len(bench.loop.released()) - rounds)
        return CaseResult(name, faults, lost == 0 and twice == 0, lost, twice)


def run_all(names: tuple[str, ...] = tuple(CASES)) -> dict[str, Any]:
    """The harness's document: faults injected and survived, updates lost, rounds released twice."""
    results = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ebscfl-faults-") as home:
            try:
                results.append(run_case(name, Path(home)))
            except EbscflError as error:
                results.append(CaseResult(name, 1, False, 0, 0, f"{type(error).__name__}: {error}"))
    return {
        "faults_injected": sum(r.faults for r in results),
        "faults_survived": sum(r.faults for r in results if r.survived),
        "updates_lost": sum(r.updates_lost for r in results),
        "released_twice": sum(r.released_twice for r in results),
        "failed": [json.loads(json.dumps(vars(r))) for r in results if not r.survived],
        "cases": len(results),
    }
