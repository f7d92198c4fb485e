"""The key centre behind real TLS sockets: who may speak, what is done once, what survives."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError, VerificationError
from ebscfl.federation.loopback import DirectExchange, Loopback, answers_of
from ebscfl.federation.rounds import Deadlines, play
from ebscfl.ids import SERVER, client_address
from ebscfl.kdc_service.certificates import issue, make_authority
from ebscfl.kdc_service.deployment import (
    RunFile,
    authority_of,
    hand_out,
    open_service,
    open_stub,
    write_durably,
    write_private,
)
from ebscfl.kdc_service.frames import KdcUnavailable, Kind, Request, Status
from ebscfl.kdc_service.limits import Limits
from ebscfl.kdc_service.service import KdcService
from ebscfl.kdc_service.stub import Patience
from ebscfl.protocol import codec
from ebscfl.protocol.measure import example_round
from ebscfl.protocol.messages import EnrolRequest, OpenRound
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of, training_round_of

SETUP = Setup("sealed", 4, 2, 30, b"run-tag!")
HASTY = Patience(connect_s=2, answer_s=5, in_all_s=0.3)
QUICK = Deadlines(first_s=5, last_s=5, quorum=3, pause_s=0.001)


@pytest.fixture
def loop(tmp_path: Path):
    with Loopback(tmp_path, SETUP) as made:
        yield made


def swap_identity(directory: Path, identity) -> None:
    write_durably(directory / "tls.pem", identity.certificate)
    write_private(directory / "tls.key", identity.private_key)


def refused(loop: Loopback, directory: Path) -> str:
    stub = open_stub(directory, patience=HASTY)
    with stub, pytest.raises((VerificationError, KdcUnavailable)) as caught:
        stub.hello()
    return str(caught.value)


def test_strangers_expired_and_unborn_certificates_are_refused(loop: Loopback):
    directory, address = loop.client_dir(0), client_address(0)
    swap_identity(directory, issue(make_authority(), SETUP.run_id, address))
    assert "does not accept our certificate" in refused(loop, directory)
    swap_identity(directory, issue(authority_of(loop.kdc_dir), SETUP.run_id, address, days=-1))
    assert "does not accept our certificate" in refused(loop, directory)
    swap_identity(directory, issue(authority_of(loop.kdc_dir), b"otherrun", address))
    assert "names no party" in refused(loop, directory)
    swap_identity(directory, issue(authority_of(loop.kdc_dir), SETUP.run_id, client_address(4)))
    assert "outside the run" in refused(loop, directory)
    assert loop.service.metrics.value("ebscfl_kdc_refused_connections_total", reason="certificate or TLS") >= 2


def test_a_key_centre_with_another_name_is_not_believed(loop: Loopback, tmp_path: Path):
    port = loop.service.port
    loop.service.stop()
    swap_identity(loop.kdc_dir, issue(authority_of(loop.kdc_dir), SETUP.run_id, SERVER, ("127.0.0.1",)))
    loop.service = open_service(loop.kdc_dir, port=port)
    loop.service.start()
    assert "not this run's key centre" in refused(loop, loop.server_dir)


def test_plain_text_and_silence_hurt_nobody(loop: Loopback):
    with socket.create_connection(("127.0.0.1", loop.service.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(5)
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert sock.recv(100).startswith(b"HTTP")
    with socket.create_connection(("127.0.0.1", loop.service.port)), open_stub(loop.server_dir) as stub:
        assert stub.hello() == -1  # served beside a peer that never shakes hands


class LostHalf:
    """A TLS context whose connections lose their TLS half during the handshake, as when a stop closes them."""

    def wrap_socket(self, raw: socket.socket, **_: object) -> ssl.SSLSocket:
        sock = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).wrap_socket(
            raw, server_side=True, do_handshake_on_connect=False
        )
        sock.do_handshake = lambda *_: sock._sslobj.lost_in_a_stop()  # type: ignore[assignment, method-assign, union-attr]
        return sock


@pytest.mark.parametrize("stopping", [True, False])
def test_a_connection_cut_by_a_stop_is_no_error_and_any_other_is(loop: Loopback, stopping: bool):
    service = loop.service
    assert isinstance(service, KdcService)
    inet, peer = connected_pair()
    assert service._count.enter()
    before, service._context, service._stopping = service._context, LostHalf(), stopping  # type: ignore[assignment]
    try:
        with contextlib.nullcontext() if stopping else pytest.raises(AttributeError, match="lost_in_a_stop"):
            service._connection(inet)
    finally:
        service._context, service._stopping = before, False
        peer.close()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        return listener.accept()[0], far


def test_the_sender_is_the_certificate(loop: Loopback):
    """Client 1 enrols client 1, whatever it would like to be; and only the server opens rounds."""
    loop.client(1)
    with open_stub(loop.client_dir(2), patience=HASTY) as stub:
        with pytest.raises(VerificationError, match="may not send OpenRound"):
            stub.say(codec.encode(OpenRound(1, (1,)), SETUP.run_id))
        with pytest.raises(VerificationError, match="refuses"):
            stub.say(b"EBSC" + bytes(20))
    with open_stub(loop.server_dir, patience=HASTY) as stub, pytest.raises(VerificationError, match="may not send"):
        stub.say(codec.encode(EnrolRequest(bytes(32)), SETUP.run_id))
    assert loop.service.metrics.value("ebscfl_kdc_enrolled") == 1


def test_a_second_key_for_the_same_client_is_refused(loop: Loopback):
    loop.client(0)
    (loop.client_dir(0) / "enrolment.bin").unlink()
    loop.client(0)  # its answer was lost: the same key gets the same master key
    (loop.client_dir(0) / "enrolment.bin").unlink()
    (loop.client_dir(0) / "root.key").unlink()
    with pytest.raises(VerificationError, match="enrolled already with another key"):
        loop.client(0)


def test_messages_over_the_limit_are_not_read(loop: Loopback):
    with open_stub(loop.client_dir(0), patience=HASTY) as stub, pytest.raises((VerificationError, KdcUnavailable)):
        stub.say(codec.encode(OpenRound(1, tuple(range(5000))), SETUP.run_id))


def test_a_peer_that_asks_too_often_waits(tmp_path: Path):
    with Loopback(tmp_path, SETUP, limits=Limits(requests_per_s=20, burst=3)) as loop:
        with open_stub(loop.server_dir) as stub:
            for _ in range(6):
                stub.collect()
            assert stub.retries > 0  # slowed down, and served in the end
        with open_stub(loop.client_dir(0)) as other:
            other.collect()
            assert other.retries == 0


def test_requests_act_once_and_in_order(loop: Loopback):
    session = loop.service.answer(SERVER, Request(Kind.HELLO, 0, 0)).session
    say = [codec.encode(OpenRound(i, (0,)), SETUP.run_id) for i in range(3)]
    first = loop.service.answer(SERVER, Request(Kind.SAY, session, 1, say[0]))
    assert loop.service.answer(SERVER, Request(Kind.SAY, session, 1, say[1])) == first  # the number decides
    assert loop.service.answer(SERVER, Request(Kind.SAY, session, 2, say[2])).status is Status.OK
    assert loop.service.answer(SERVER, Request(Kind.SAY, session, 1, say[0])).status is Status.REFUSED


def test_of_two_servers_the_newer_one_is_served(loop: Loopback):
    with open_stub(loop.server_dir, patience=HASTY) as old, open_stub(loop.server_dir, patience=HASTY) as new:
        old.hello()
        new.hello()
        with pytest.raises(VerificationError, match="another process speaks for server"):
            old.collect()
        assert new.collect() == ()


def test_one_process_serves_a_directory(loop: Loopback):
    with pytest.raises(ConfigError, match="another key centre serves"):
        open_service(loop.kdc_dir, port=0)


def test_a_stub_outlives_a_restart(loop: Loopback):
    with open_stub(loop.server_dir) as stub:
        stub.hello()
        before = stub.incarnation
        loop.restart_service()
        assert stub.collect() == ()
        assert stub.incarnation != before


def test_a_key_centre_that_is_away_is_reported(loop: Loopback):
    loop.service.stop()
    with open_stub(loop.server_dir, patience=HASTY) as stub, pytest.raises(KdcUnavailable, match="does not answer"):
        stub.hello()


def test_a_full_disk_stops_nothing_for_good(tmp_path: Path):
    """The store fails under the role: nothing is answered, and everything goes on when there is room again."""
    wide = dataclasses.replace(SETUP, dim=6000)  # a commitment of 48 kB cannot be written into the pages there are
    updates, clusters, server = example_round(4, 2, 6000, bytes(32))
    with Loopback(tmp_path, wide) as loop:
        agents = {i: loop.client(i) for i in range(4)}
        original = loop.service._make_role

        def tight():
            hosted = original()
            pages = hosted.role._store._db.execute("PRAGMA page_count").fetchone()[0]
            hosted.role._store._db.execute(f"PRAGMA max_page_count = {pages}")
            return hosted

        def use(make_role) -> None:
            loop.service._make_role = make_role
            if loop.service._hosted is not None:
                loop.service._hosted.close()
                loop.service._hosted = None

        def attempt():
            agent.role = agent._make_role()
            newest = training_round_of(max(0, agent._line.hello()))
            exchange, ids = DirectExchange(answers_of(agents, updates, clusters)), iter([round_id_of(newest + 1)])
            return play(agent, exchange, range(4), server, fresh_round=lambda: next(ids), deadlines=QUICK)

        use(tight)
        agent = loop.agent()
        agent._line._patience = HASTY
        with pytest.raises(KdcUnavailable, match=r"cannot be (written|used)"):
            attempt()
        assert loop.service.metrics.value("ebscfl_kdc_requests_total", party="server", kind="say", status="ok") == 0
        use(original)
        assert attempt().outcome.included == (0, 1, 2, 3)
        assert loop.service.complaint() is None


KDC_SCRIPT = """
import sys, time
from pathlib import Path
from ebscfl.kdc_service.deployment import open_service
service = open_service(Path(sys.argv[1]), port=int(sys.argv[2]))
service.start()
print(service.port, flush=True)
time.sleep(600)
"""


def spawn(loop: Loopback, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KDC_SCRIPT, str(loop.kdc_dir), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline().strip() == str(port)
    return process


@pytest.mark.slow
def test_kill_9_between_any_two_messages_loses_and_repeats_nothing(loop: Loopback):
    """The key centre as a process of its own dies after each message of a round; the round ends all the same."""
    port = loop.service.port
    loop.service.stop()
    process = spawn(loop, port)
    try:
        updates, clusters, server = example_round(4, 2, 30, bytes(32))
        agents = {i: loop.client(i) for i in range(4)}
        agent = loop.agent()
        line = agent._line
        killed = 0

        class Murderer:
            incarnation = line.incarnation

            def say(self, message: bytes) -> tuple[bytes, ...]:
                nonlocal process, killed
                answers = line.say(message)
                process.kill()
                process.wait()
                process = spawn(loop, port)
                killed += 1
                assert line.say(message) == answers  # the answer was lost: the same question, the same answer
                return answers

            def collect(self) -> tuple[bytes, ...]:
                return line.collect()

        agent._line = Murderer()
        ids = iter(range(1, 10))
        exchange = DirectExchange(answers_of(agents, updates, clusters))
        end = play(agent, exchange, range(4), server, fresh_round=lambda: next(ids), deadlines=QUICK)
        assert end.outcome.included == (0, 1, 2, 3)
        assert killed == 4  # commitment, opening, scores, release
    finally:
        process.kill()
        process.wait()
    with sqlite3.connect(loop.kdc_dir / "kdc.sqlite") as db:
        assert db.execute("SELECT count(*) FROM answers").fetchone() == (4,)
        assert db.execute("SELECT count(*) FROM rounds WHERE released IS NOT NULL").fetchone() == (1,)
    db.close()


def test_run_files_are_checked(tmp_path: Path):
    with pytest.raises(ConfigError, match="kdc init"):
        RunFile.load(tmp_path)
    run = RunFile(SETUP, "kdc.example", 1234)
    (tmp_path / "run.json").write_text(run.to_json())
    assert RunFile.load(tmp_path) == run
    for broken in ("{}", "[]", run.to_json().replace('"dim": 30', '"dim": 0'), run.to_json().replace("dim", "dom")):
        (tmp_path / "run.json").write_text(broken)
        with pytest.raises(ConfigError):
            RunFile.load(tmp_path)


def test_secret_files_are_private(loop: Loopback):
    loop.client(0)
    for path in loop.home.rglob("*"):
        if path.name in ("root.key", "tls.key", "ca.key", "kdc.sqlite", "enrolment.bin"):
            assert path.stat().st_mode & 0o077 == 0, path
    assert dataclasses.asdict(RunFile.load(loop.server_dir))["setup"]["protocol"] == "sealed"
    with pytest.raises(Exception, match="outside the run"):
        hand_out(loop.kdc_dir, client_address(99), loop.home / "x")


def test_small_answers_do_not_wait_for_the_network(loop: Loopback):
    """Two small writes on a connection with Nagle's algorithm wait for a delayed acknowledgement: 40 ms an answer."""
    with loop.stub(loop.server_dir) as stub:
        stub.hello()
        ends = [stub._sock, *(sock for sock in loop.service._open if sock.fileno() >= 0)]
        assert len(ends) >= 2
        assert all(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for sock in ends)


def test_a_refused_certificate_is_always_told(loop: Loopback):
    """The first words of the peer cross the alert; closing on them unread would lose it now and then."""
    directory = loop.client_dir(0)
    swap_identity(directory, issue(make_authority(), SETUP.run_id, client_address(0)))
    assert {"does not accept our certificate" in refused(loop, directory) for _ in range(40)} == {True}
    end = time.monotonic() + 30
    while loop.service._open:  # and no connection is kept for it
        assert time.monotonic() < end
        time.sleep(0.01)
