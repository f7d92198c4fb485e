"""Rounds over real sockets: the sums are RFCA's, deadlines hold, and a server that dies anywhere goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import ConfigError, RoundAborted
from ebscfl.federation.journal import Event, Journal
from ebscfl.federation.loopback import DirectExchange, Loopback, answers_of
from ebscfl.federation.rounds import Deadlines, RoundEnd, play
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.ids import client_address
from ebscfl.plain import rfca_round
from ebscfl.protocol.measure import example_round, relative_errors
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of

N, M, L = 5, 2, 40
QUICK = Deadlines(first_s=0.2, last_s=0.2, quorum=3, pause_s=0.001)
TOLERANCE = {"plain": 1e-6, "paper": 1e-9, "sealed": 5e-3}  # as in the contract suite
UPDATES, CLUSTERS, SERVER_UPDATES = example_round(N, M, L, bytes(32))


def setup(protocol: str) -> Setup:
    return Setup(protocol, N, M, L, b"run-tag!")


class Ids:
    """Round ids as a checkpoint would reserve them."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return round_id_of(self.last)


def played(agent: ServerAgent, answer, ids: Ids, clients=range(N), **more) -> RoundEnd:
    return play(agent, DirectExchange(answer), clients, SERVER_UPDATES, fresh_round=ids, deadlines=QUICK, **more)


def check_sums(end: RoundEnd, clients, protocol: str) -> None:
    clients = list(clients)
    want, weight = rfca_round(UPDATES[clients], [CLUSTERS[i] for i in clients], SERVER_UPDATES)
    assert end.outcome.included == tuple(clients)
    assert max(relative_errors(end.outcome.aggregates, want)) < TOLERANCE[protocol]
    assert abs(end.outcome.total_weight - weight) < TOLERANCE[protocol] * weight


@pytest.mark.parametrize("protocol", ["plain", "paper", "sealed"])
def test_rounds_over_sockets_are_rfca(protocol: str, tmp_path: Path):
    with Loopback(tmp_path, setup(protocol)) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        agent, ids = loop.agent(), Ids()
        for _ in range(2):
            end = played(agent, answers_of(agents, UPDATES, CLUSTERS), ids)
            check_sums(end, range(N), protocol)
            assert end.culprits == {}
        assert ids.last == 2


@pytest.mark.parametrize("protocol", ["plain", "paper", "sealed"])
def test_a_straggler_is_asked_again_then_left_out_and_named(protocol: str, tmp_path: Path):
    with Loopback(tmp_path, setup(protocol)) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        del agents[2]
        end = played(loop.agent(), answers_of(agents, UPDATES, CLUSTERS), Ids())
        check_sums(end, [i for i in range(N) if i != 2], protocol)
        assert list(end.culprits) == ["client 2"]
        assert end.asked_again == (2,)
        assert end.restarts == (1 if protocol == "paper" else 0)  # zero-sum masks start over


def test_below_the_quorum_nothing_is_released(tmp_path: Path):
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        two = {i: agents[i] for i in (0, 1)}
        with pytest.raises(RoundAborted, match="2 valid uploads, 3 are needed"):
            played(loop.agent(), answers_of(two, UPDATES, CLUSTERS), Ids())
        assert loop.released() == {}


def test_a_damaged_upload_is_asked_for_again(tmp_path: Path):
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        honest, asked = answers_of(agents, UPDATES, CLUSTERS), []

        def once_cut(round_id: int, client: int) -> bytes | None:
            asked.append(client)
            data = honest(round_id, client)
            assert data is not None
            return data[:-1] if client == 1 and asked.count(1) == 1 else data

        end = played(loop.agent(), once_cut, Ids())
        check_sums(end, range(N), "sealed")
        assert end.asked_again == (1,)


def test_the_networks_duplicates_count_once(tmp_path: Path):
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}

        class Twice(DirectExchange):
            def poll(self):
                return [pair for pair in super().poll() for _ in range(2)]

        exchange = Twice(answers_of(agents, UPDATES, CLUSTERS))
        end = play(loop.agent(), exchange, range(N), SERVER_UPDATES, fresh_round=Ids(), deadlines=QUICK)
        check_sums(end, range(N), "sealed")
        assert end.culprits == {}


def test_papers_keys_die_with_the_key_centre_and_the_round_is_played_again(tmp_path: Path):
    with Loopback(tmp_path, setup("paper")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        honest, restarted = answers_of(agents, UPDATES, CLUSTERS), []

        def answer(round_id: int, client: int) -> bytes | None:
            if client == 3 and not restarted:
                restarted.append(True)
                loop.restart_service()  # clients 3 and 4 find no key
            return honest(round_id, client) if not restarted or round_id > round_id_of(1) else None

        ids = Ids()
        end = played(loop.agent(), answer, ids)
        check_sums(end, range(N), "paper")
        assert ids.last > 1


class Killed(Exception):
    """The server process dies here."""


def fragile(journal: Journal, count: list[int], fatal: int) -> Journal:
    """The ``fatal``-th write and everything after it never happens."""
    append = journal.append

    def write(event: Event, client: int, data: bytes) -> None:
        if count[0] == fatal:
            raise Killed
        count[0] += 1
        append(event, client, data)

    journal.append = write  # type: ignore[method-assign]
    return journal


@pytest.mark.parametrize("fatal", range(11))
def test_a_server_killed_at_any_event_goes_on_and_releases_once(fatal: int, tmp_path: Path):
    """Events: start, two answers, five uploads, two closings, two answers: dying before any of them loses nothing."""
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        answer, ids, path = answers_of(agents, UPDATES, CLUSTERS), Ids(), tmp_path / "journal"
        first = loop.agent(journal=fragile(Journal(path, durable=False), [0], fatal))
        with pytest.raises(Killed):
            played(first, answer, ids)
        again = loop.agent(journal=Journal(path, durable=False))
        resumed = again.resume()
        assert resumed == (fatal > 0)
        end = played(again, answer, ids, resumed=resumed)
        check_sums(end, range(N), "sealed")
        assert loop.released() == {end.round_id: tuple(range(N))}
        assert end.round_id == round_id_of(
            1 if resumed else 2
        )  # the same round goes on; only an unopened one gets a new id


def test_a_server_killed_after_the_release_gets_the_same_release_again(tmp_path: Path):
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        answer, ids, path = answers_of(agents, UPDATES, CLUSTERS), Ids(), tmp_path / "journal"
        one = played(loop.agent(journal=Journal(path, durable=False)), answer, ids)
        again = loop.agent(journal=Journal(path, durable=False))  # it died before its checkpoint
        assert again.resume()
        two = played(again, lambda round_id, client: None, ids, resumed=True)  # no client is asked
        assert np.array_equal(one.outcome.aggregates, two.outcome.aggregates)
        assert loop.released() == {round_id_of(1): tuple(range(N))}


def test_key_centre_and_server_die_together(tmp_path: Path):
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        answer, ids, path = answers_of(agents, UPDATES, CLUSTERS), Ids(), tmp_path / "journal"
        with pytest.raises(Killed):
            played(loop.agent(journal=fragile(Journal(path, durable=False), [0], 9)), answer, ids)
        loop.restart_service()
        again = loop.agent(journal=Journal(path, durable=False))
        assert again.resume()
        check_sums(played(again, answer, ids, resumed=True), range(N), "sealed")


@pytest.mark.parametrize("wrong", [{"first_s": 0}, {"quorum": 0}, {"pause_s": -1}, {"attempts": 0}])
def test_deadlines_are_checked(wrong):
    with pytest.raises(ConfigError):
        Deadlines(**wrong)


@pytest.mark.parametrize("dies", [False, True])
def test_a_client_that_never_enrolled_stops_nobody(dies: bool, tmp_path: Path):
    """Any member could answer and not enrol: the key centre names it, and the round is opened without it."""
    with Loopback(tmp_path, setup("sealed")) as loop:
        agents = {i: loop.client(i) for i in range(N) if i != 3}
        agent, ids = loop.agent(), Ids()
        if dies:  # between the refusal and the next attempt: the refused round is not the open one
            with pytest.raises(RoundAborted, match=r"clients \[3\] are not enrolled") as caught:
                agent.begin(ids(), range(N), SERVER_UPDATES)
            assert caught.value.culprits == (client_address(3),)
            agent = loop.agent()
            assert not agent.resume()
        end = played(agent, answers_of(agents, UPDATES, CLUSTERS), ids)
        check_sums(end, [0, 1, 2, 4], "sealed")
        assert list(end.culprits) == ["client 3"]
        few = Deadlines(first_s=0.2, last_s=0.2, quorum=5, pause_s=0.001)
        with pytest.raises(RoundAborted, match="4 valid uploads, 5 are needed"):
            play(agent, DirectExchange(lambda r, i: None), range(N), SERVER_UPDATES, fresh_round=ids, deadlines=few)
