"""The fault harness: one federation on the loopback interface, broken in every way at every phase, and what was lost.

Each case plays whole rounds of `sealed` through real sockets, files and roles, breaks something on the way and checks
three things: the sums are those of the clients that took part, no update of a client that was up is missing, and the
key centre released every round at most once. The key centre is a process of its own and dies by signal 9; server and
clients die abruptly too: their objects are dropped where they stand and new ones start from the files alone. `kills`
does the same to whole Flower processes.
"""

from __future__ import annotations

import datetime
import errno
import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, EbscflError, VerificationError
from ebscfl.federation import client_agent
from ebscfl.federation.client_agent import ClientAgent
from ebscfl.federation.journal import ENTRY, Event, Journal
from ebscfl.federation.loopback import DirectExchange, KdcProcess, Loopback, answers_of
from ebscfl.federation.proxy import Fault, FaultProxy
from ebscfl.federation.rounds import Deadlines, RoundEnd, play
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.ids import SERVER, Address, client_address
from ebscfl.kdc_service.certificates import Identity, issue, make_authority
from ebscfl.kdc_service.deployment import authority_of, open_service, write_durably, write_private
from ebscfl.kdc_service.stub import KdcStub
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

    def __init__(self, home: Path, *, process: bool = False, strangers: tuple[int, ...] = ()) -> None:
        self.loop = Loopback(home, Setup("sealed", CLIENTS, CLUSTERS, DIM, b"run-tag!"), process=process)
        self.updates, self.clusters, self.server_updates = example_round(CLIENTS, CLUSTERS, DIM, root_from_seed(7))
        self.clients = {i: self.loop.client(i) for i in range(CLIENTS) if i not in strangers}
        self.last_round = 0
        self.port: int | None = None
        self._stubs: list[KdcStub] = []

    def fresh(self) -> int:
        """The next round id."""
        self.last_round += 1
        return round_id_of(self.last_round)

    def journal(self) -> Journal:
        """The server's journal, opened as a new process would."""
        return Journal(self.loop.server_dir / "round.journal", durable=False)

    def server(self, journal: Journal | None = None) -> ServerAgent:
        """A server that has just come up."""
        agent = self.loop.agent(journal=journal or self.journal(), port=self.port)
        assert isinstance(agent._line, KdcStub)
        self._stubs.append(agent._line)
        return agent

    @property
    def retries(self) -> int:
        """How often servers had to repeat a request."""
        return sum(stub.retries for stub in self._stubs)

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


def wrong_identity(make: Callable[[Bench, Address], Identity], *, accepted: bool = False) -> Case:
    """A client and the server in turn show another certificate; with their own again, nothing is lost."""

    def case(bench: Bench) -> tuple[int, int, int]:
        lost = 0
        for directory, address in ((bench.loop.client_dir(1), client_address(1)), (bench.loop.server_dir, SERVER)):
            kept = {name: (directory / name).read_bytes() for name in ("tls.pem", "tls.key")}
            identity = make(bench, address)
            write_private(directory / "tls.key", identity.private_key)
            write_durably(directory / "tls.pem", identity.certificate)
            _expect_hello(bench, directory, accepted)
            if not accepted:
                write_private(directory / "tls.key", kept["tls.key"])
                write_durably(directory / "tls.pem", kept["tls.pem"])
            bench.reborn(1)
            lost += bench.check(bench.play(bench.server()))
        return 2, lost, 2

    return case


def _expect_hello(bench: Bench, directory: Path, accepted: bool) -> None:
    try:
        with bench.loop.stub(directory) as stub:
            stub.hello()
    except VerificationError:
        if accepted:
            raise
        return
    if not accepted:
        raise EbscflError("a certificate that is not good was accepted")


def _of_another_authority(bench: Bench, address: Address) -> Identity:
    return issue(make_authority(), bench.loop.setup.run_id, address)


def _of_another_run(bench: Bench, address: Address) -> Identity:
    return issue(authority_of(bench.loop.kdc_dir), b"otherrun", address)


def _expired(bench: Bench, address: Address) -> Identity:
    return issue(authority_of(bench.loop.kdc_dir), bench.loop.setup.run_id, address, days=-1)


def _signed_at(minutes: float) -> Callable[[Bench, Address], Identity]:
    """What a signer whose clock is ``minutes`` ahead of ours makes; to us it is as if our own clock were behind."""

    def make(bench: Bench, address: Address) -> Identity:
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
        return issue(authority_of(bench.loop.kdc_dir), bench.loop.setup.run_id, address, at=at)

    return make


def stranger(bench: Bench) -> tuple[int, int, int]:
    """A client that never enrolled repeats another's upload as its own; the round goes on without it."""
    agent = bench.server()

    def answer(round_id: int, client: int) -> bytes | None:
        return bench.answer(round_id, 2 if client == 3 else client)

    end = bench.play(agent, answer)
    lost = bench.check(end, missing=(3,))
    if "client 3" not in end.culprits:
        raise EbscflError("the stranger was not named")
    bench.reborn(3)  # now it enrols
    return 1, lost + bench.check(bench.play(agent)), 2


def key_centre_disk_full(bench: Bench) -> tuple[int, int, int]:
    """The key centre's disk is full when a round is opened, and has room again a moment later."""
    kdc, agent = bench.loop.service, bench.server()
    assert isinstance(kdc, KdcProcess)
    retries = bench.retries
    kdc.fill_disk(True)
    threading.Timer(1.0, kdc.fill_disk, (False,)).start()
    lost = bench.check(bench.play(agent))
    if bench.retries == retries:
        raise EbscflError("the full disk was not noticed")
    return 1, lost, 1


def server_disk_full(phase: str) -> Case:
    """The server's disk is full in the middle of a journal entry; a new server goes on when there is room."""

    def case(bench: Bench) -> tuple[int, int, int]:
        journal = bench.journal()
        append = journal.append

        def tight(event: Event, client: int, data: bytes) -> None:
            if event is not EVENTS[phase]:
                return append(event, client, data)
            journal._file.write(ENTRY.pack(event, client, len(data) + 1, 0) + data[: len(data) // 2])
            journal._file.flush()
            raise OSError(errno.ENOSPC, "no space left on device")

        journal.append = tight  # type: ignore[method-assign]
        try:
            bench.play(bench.server(journal))
        except OSError:
            again = bench.server()
            resumed = again.resume()
            return 1, bench.check(bench.play(again, resumed=resumed)), 1
        raise EbscflError("the full disk was not noticed")

    return case


def client_disk_full(bench: Bench) -> tuple[int, int, int]:
    """A client cannot keep its upload: it sends nothing, and encodes anew when it has room and is asked again."""
    agents: Any = client_agent
    real, failed = agents.write_private, [0]

    def tight(path: Path, data: bytes) -> None:
        if path == bench.loop.client_dir(1) / "upload.bin" and not failed[0]:
            failed[0] += 1
            raise OSError(errno.ENOSPC, "no space left on device")
        real(path, data)

    def answer(round_id: int, client: int) -> bytes | None:
        try:
            return bench.answer(round_id, client)
        except OSError:
            bench.reborn(client)  # its app ends with the error; the next message starts another
            return None

    agents.write_private = tight
    try:
        lost = bench.check(bench.play(bench.server(), answer))
    finally:
        agents.write_private = real
    return failed[0], lost, 1


def two_key_centres(bench: Bench) -> tuple[int, int, int]:
    """A second key centre on the same directory does not start."""
    try:
        open_service(bench.loop.kdc_dir, port=0)
    except ConfigError:
        return 1, bench.check(bench.play(bench.server())), 1
    raise EbscflError("two key centres served one directory")


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
        "two key centres at once": two_key_centres,
        "certificate of another authority": wrong_identity(_of_another_authority),
        "certificate of another run": wrong_identity(_of_another_run),
        "expired certificate": wrong_identity(_expired),
        "clock skew of 50 minutes": wrong_identity(_signed_at(50), accepted=True),
        "clock skew of 2 hours": wrong_identity(_signed_at(120)),
        "client that never enrolled": stranger,
        "client's disk is full": client_disk_full,
        "key centre's disk is full": key_centre_disk_full,
        **{f"server's disk is full at {phase}": server_disk_full(phase) for phase in PHASES},
    }


CASES: dict[str, Case] = _cases()
STRANGERS = {"client that never enrolled": (3,)}
ONLY_AS_PROCESS = ("key centre's disk is full",)


def run_case(name: str, home: Path, *, process: bool = True) -> CaseResult:
    """Play one case below ``home``; with ``process`` the key centre is one."""
    bench = Bench(home, process=process, strangers=STRANGERS.get(name, ()))
    with bench.loop:
        faults, lost, rounds = CASES[name](bench)
        twice = max(0, len(bench.loop.released()) - rounds)
        return CaseResult(name, faults, lost == 0 and twice == 0, lost, twice)


def total(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the harness's parts, and the parts."""
    keys = ("cases", "faults_injected", "faults_survived", "updates_lost", "released_twice")
    return {**{key: sum(part[key] for part in parts.values()) for key in keys}, **parts}


def run_all(
    names: Sequence[str] = tuple(CASES), *, process: bool = True, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The harness's document: faults injected and survived, updates lost, rounds released twice."""
    results = []
    for name in names:
        say(name)
        with tempfile.TemporaryDirectory(prefix="ebscfl-faults-") as home:
            try:
                results.append(run_case(name, Path(home), process=process))
            except EbscflError as error:
                results.append(CaseResult(name, 1, False, 0, 0, f"{type(error).__name__}: {error}"))
    return {
        "faults_injected": sum(r.faults for r in results),
        "faults_survived": sum(r.faults for r in results if r.survived),
        "updates_lost": sum(r.updates_lost for r in results),
        "released_twice": sum(r.released_twice for r in results),
        "failed": [json.loads(json.dumps(vars(r))) for r in results if not r.survived],
        "cases": len(results),
        "played": list(names),
    }
