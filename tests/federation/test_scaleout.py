"""Heavy sums in shares have the bits of one process, also when workers, or all of Ray, are killed on the way."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.errors import ConfigError, DependencyError, UsageError
from ebscfl.federation import scaleout
from ebscfl.federation.loopback import DirectExchange, Loopback, answers_of
from ebscfl.federation.processes import Children, free_ports, listens
from ebscfl.federation.rounds import Deadlines, play
from ebscfl.federation.scaleout import RayPool, open_pool
from ebscfl.kdc_service.deployment import RunFile, init_kdc
from ebscfl.plain import rfca_round
from ebscfl.pool import IN_PLACE, Pool, spans
from ebscfl.protocol.measure import example_round, relative_errors
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of
from ebscfl.protocol.run import RoundResult, Session
from ebscfl.protocol.sealed.pad_work import PadWork
from ebscfl.protocol.sealed.shards import SharedPadWork, pad_share  # noqa: F401 - for a script below
from ebscfl.sealed import Answer, ClientKeys, RunningSum, SealedParameters, client_keys, new_sum, plan

# Ray leaves files and processes to the garbage collector; that is its own affair.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N, M, L = 9, 2, 40


class Shares(Pool):
    """As many shares as a pool with workers would have, computed here."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.calls = 0

    def map(self, call, common, shares, *, spare=False):
        self.calls += len(shares)
        return super().map(call, common, shares)


def played(protocol: str, pool: Pool, *, dim: int = L, clients: int = N, **options) -> RoundResult:
    """Two rounds with fixed keys; both heavy roles share their sums out to ``pool``."""
    updates, clusters, server = example_round(clients, M, dim, rng.root_from_seed(3))
    session = Session(
        protocol, num_clients=clients, num_clusters=M, dim=dim, root=rng.root_from_seed(8), options=options
    )
    session.kdc.use(pool)
    session.server.use(pool)
    session.round(updates, clusters, server)
    return session.round(updates[::-1].copy(), clusters[::-1], server)


def same_bits(one: RoundResult, two: RoundResult) -> bool:
    return one.aggregates.tobytes() == two.aggregates.tobytes() and one.total_weight == two.total_weight


# --- the law, without Ray ---------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 12), st.integers(1, 7))
def test_spans_cover_everything_once_and_cut_at_steps(size: int, parts: int, step: int):
    cut = spans(size, parts, step=step)
    assert [i for span in cut for i in range(size)[span]] == list(range(size))
    assert len(cut) <= parts
    assert all(span.start % step == 0 for span in cut)


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("sealed", {}), ("sealed", {"field": "m61"}), ("sealed", {"history": True}),
        ("paper", {"group": 3}), ("paper-naive", {}),
    ],
)  # fmt: skip
def test_any_number_of_shares_gives_the_same_bits(protocol: str, options: dict[str, object], workers: int):
    dim = 8 if protocol == "paper-naive" else L
    clients = 4 if protocol == "paper-naive" else N
    pool = Shares(workers)
    shared = played(protocol, pool, dim=dim, clients=clients, **options)
    assert pool.calls >= min(workers, 2)
    assert same_bits(shared, played(protocol, IN_PLACE, dim=dim, clients=clients, **options))


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 5), st.integers(9_000, 40_000))
def test_rows_of_the_papers_sums_are_cut_where_one_process_cuts_them(workers: int, dim: int):
    """Long enough for several blocks: a product of another size could round differently."""
    assert same_bits(played("paper", Shares(workers), dim=dim), played("paper", IN_PLACE, dim=dim))


# --- with Ray ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_pool() -> Iterator[RayPool]:
    pytest.importorskip("ray", reason="needs the extra 'federation' (Ray)")
    with open_pool(2) as pool:
        assert isinstance(pool, RayPool)
        yield pool
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def whoami(common: object, number: int) -> tuple[int, int]:
    time.sleep(0.05)
    return number, os.getpid()


def refuse(common: str) -> None:
    raise UsageError(common)


def writable(common: np.ndarray, share: np.ndarray) -> np.ndarray:
    common += share  # what a worker is given is its own
    return common


def stalled_pads(
    common: tuple[SealedParameters, str], keys: list[ClientKeys], answers: list[Answer]
) -> tuple[RunningSum, int]:
    """The first time a share stops in the middle and says who computes it; the second time it goes on."""
    params, folder = common
    mark = Path(folder) / f"{answers[0].alpha}"
    half = pad_share(params, keys[:1], answers[:1])
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        time.sleep(60)
    del half
    return pad_share(params, keys, answers), os.getpid()


def pads_example(params: SealedParameters, clients: int) -> tuple[list[ClientKeys], list[Answer], RunningSum]:
    keys = [client_keys(params, bytes([i]) * 32, "run", 1, i) for i in range(clients)]
    answers = [Answer(3 * i + 1, 5 * i + 2) for i in range(clients)]
    want = new_sum(params)
    PadWork(params).add(want, keys, answers)
    return keys, answers, want


@pytest.mark.slow
def test_workers_compute_and_results_are_ours(ray_pool: RayPool):
    answers = ray_pool.map(whoami, None, [(i,) for i in range(12)])
    assert [number for number, _ in answers] == list(range(12))
    assert os.getpid() not in {pid for _, pid in answers}
    assert len({pid for _, pid in answers}) == 2
    part = ray_pool.hold(np.arange(100_000))
    for _ in range(2):  # a worker that wrote into what it shares with the others would show the second time
        (got,) = ray_pool.map(writable, np.ones(100_000, dtype=int), [(part,)])
        assert np.array_equal(got, np.arange(100_000) + 1)
        got[:] = 0  # key material is wiped, so results must be writable
    with pytest.raises(UsageError, match="what went wrong"):
        ray_pool.map(refuse, "what went wrong", [()])
    assert ray_pool.map(whoami, None, [(1,)])[0][1] != os.getpid()  # and Ray is not given up for that


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "dim"), [("sealed", 20_000), ("paper", 20_000)])
def test_rounds_over_ray_have_the_same_bits(protocol: str, dim: int, ray_pool: RayPool):
    assert same_bits(played(protocol, ray_pool, dim=dim), played(protocol, IN_PLACE, dim=dim))


@pytest.mark.slow
def test_a_killed_worker_does_not_change_the_sum(ray_pool: RayPool, tmp_path: Path):
    params = plan(8, 30_000, M)
    keys, answers, want = pads_example(params, 8)
    killed: list[int] = []

    def kill() -> None:
        marks: list[Path] = []
        while len(marks) < 2 or not all(mark.read_text() for mark in marks):
            time.sleep(0.05)
            marks = list(tmp_path.iterdir())
        for mark in marks:
            killed.append(int(mark.read_text()))
            if killed[-1] != os.getpid():  # else Ray was given up: the test fails below
                os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    shares = [(keys[span], answers[span]) for span in spans(8, 2)]
    done = ray_pool.map(stalled_pads, (params, str(tmp_path)), shares)
    thread.join()
    assert len(killed) == 2
    assert not {pid for _, pid in done} & {*killed, os.getpid()}  # computed by other workers
    field = params.field
    assert np.array_equal(field.add(done[0][0].words, done[1][0].words), want.words)
    assert np.array_equal(field.add(done[0][0].guard, done[1][0].guard), want.guard)


@pytest.mark.slow
def test_a_federation_whose_workers_are_killed(ray_pool: RayPool, tmp_path: Path):
    """Server role and key centre service over TLS; a thread kills whoever computes, fewer times than Ray tries."""
    dim = 20_000
    updates, clusters, server_updates = example_round(N, M, dim, rng.root_from_seed(3))
    stop, killed = threading.Event(), set[int]()

    def kill() -> None:
        while len(killed) < scaleout.RETRIES and not stop.wait(0.002):
            for pid, name in descendants(os.getpid()).items():
                if name == "ray::compute" and pid not in killed and len(killed) < scaleout.RETRIES:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)

    with Loopback(tmp_path, Setup("sealed", N, M, dim, b"run-tag!"), pool=ray_pool) as loop:
        agents = {i: loop.client(i) for i in range(N)}
        agent = loop.agent()
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            for step in (1, 2):
                end = play(
                    agent, DirectExchange(answers_of(agents, updates, clusters)), range(N), server_updates,
                    fresh_round=lambda step=step: round_id_of(step),
                    deadlines=Deadlines(first_s=30, last_s=30, quorum=N, pause_s=0.01),
                )  # fmt: skip
                assert end.outcome.included == tuple(range(N))
                want, _ = rfca_round(updates, clusters, server_updates)
                assert max(relative_errors(end.outcome.aggregates, want)) < 5e-3
        finally:
            stop.set()
            thread.join()
        assert sorted(loop.released()) == [round_id_of(1), round_id_of(2)]
    assert len(killed) == scaleout.RETRIES
    assert ray_pool.map(whoami, None, [(1,)])[0][1] != os.getpid()  # there are workers again


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_without_ray_the_process_goes_on_by_itself(victim: str):
    """In a process of its own: Ray can end the one that uses it."""
    pytest.importorskip("ray")
    script = (
        "import os, signal, sys, threading\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_scaleout import M, N, descendants, pads_example, plan, new_sum, SharedPadWork, whoami\n"
        "from ebscfl.federation.scaleout import open_pool\n"
        "pool = open_pool(2)\n"
        f"(pid,) = [p for p, name in descendants(os.getpid()).items() if name == {victim!r}]\n"
        "part = pool.hold(7)\n"
        "threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()\n"
        "assert [n for n, _ in pool.map(whoami, None, [(part,)] * 40)] == [7] * 40\n"
        "assert pool.map(whoami, None, [(part,)]) == [(7, os.getpid())]\n"
        "params = plan(8, 1000, M)\n"
        "keys, answers, want = pads_example(params, 8)\n"
        "total = new_sum(params)\n"
        "SharedPadWork(params, pool).add(total, keys, answers)\n"
        "assert total.words.tobytes() == want.words.tobytes()\n"
        "pool.close()\n"
        "assert not descendants(os.getpid()), descendants(os.getpid())\n"
        "print('went on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("went on\n"), done.stdout + done.stderr


# --- who gets in ------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Every process below ``pid`` with its name."""
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if rest[0] != "Z":
            parents[int(path.parent.name)] = (int(rest[1]), name)
    found: dict[int, str] = {}
    level = {pid}
    while level:
        level = {child for child, (parent, _) in parents.items() if parent in level}
        found |= {child: parents[child][1] for child in level}
    return found


def listeners(pids: set[int]) -> list[tuple[str, str]]:
    """(address in hexadecimal, kernel table) of every TCP socket these processes listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.append((columns[1].partition(":")[0], table))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables")
def test_ray_is_for_this_process_only(ray_pool: RayPool):
    family = {os.getpid(), *descendants(os.getpid())}
    found = listeners(family)
    assert len(found) >= 4
    assert {address for address, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
    session = Path(ray_pool._ray._private.worker._global_node.get_temp_dir_path()).parent
    assert stat.S_IMODE(session.stat().st_mode) == 0o700
    assert not ray_pool._ray._private.worker._global_node.webui_url


@pytest.mark.slow
def test_strangers_do_not_get_in(ray_pool: RayPool):
    """Without a token, or with one of their own. Ray lets them try for a while, so they try side by side."""
    address = ray_pool._ray.get_runtime_context().gcs_address
    without = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    script = f"import ray; ray.init({address!r}); print('inside')"
    trying = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for environment in (without, without | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
    ]  # fmt: skip
    for stranger in trying:
        said, _ = stranger.communicate(timeout=120)
        assert stranger.returncode != 0
        assert "inside" not in said


@pytest.mark.slow
def test_a_killed_key_centre_leaves_no_ray_behind(tmp_path: Path):
    pytest.importorskip("ray")
    (port,) = free_ports(1)
    init_kdc(tmp_path / "kdc", RunFile(Setup("sealed", 2, 1, 5, b"run-tag!"), port=port))
    command = [sys.executable, "-m", "ebscfl.cli", "kdc", "serve", str(tmp_path / "kdc"), "--metrics-port", "0"]
    with Children(tmp_path / "logs", os.environ) as children:
        children.start("kdc", [*command, "--workers", "1"])
        children.wait_for(lambda: listens(port), "the key centre's start", timeout_s=60)
        below = descendants(children.pid("kdc"))
        assert "raylet" in below.values()
        holders = [command_line(pid) for pid in below if not sees_no_data(command_line(pid))]
        assert len(holders) >= 3
        assert any("raylet" in command.split()[0] for command in holders)
        os.kill(children.pid("kdc"), signal.SIGKILL)  # not its group: Ray must see to itself
        end = time.monotonic() + 30
        while left := [command_line(pid) for pid in below if alive(pid) and not sees_no_data(command_line(pid))]:
            assert time.monotonic() < end, left
            time.sleep(0.2)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def sees_no_data(command: str) -> bool:
    """Two helpers of Ray look for their parent only now and then. They change their names once they are up.

    Only the program counts and not its arguments: the raylet, which does see data, carries its helpers' commands there.
    """
    program = " ".join(command.split()[:3]).lower().replace("_", "")
    return not command or "dashboard" in program or "runtimeenv" in program


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    for name in scaleout.ray_settings():
        monkeypatch.setenv(name, "")  # put back afterwards
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r"pip install 'ebscfl\[federation\]'"):
        open_pool(1)


def test_no_workers_means_no_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert open_pool(0) is IN_PLACE
    with pytest.raises(ConfigError, match="0 \\(none\\) or more"):
        open_pool(-1)


@pytest.mark.slow
def test_one_ray_a_process(ray_pool: RayPool):
    with pytest.raises(ConfigError, match="set workers to 0"):
        open_pool(1)
    assert ray_pool.map(whoami, None, [(3,)])[0][0] == 3  # and the first one goes on


@pytest.mark.parametrize("mode", [None, lambda: "disabled"])
def test_a_ray_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch, mode: Callable[[], str] | None):
    for name in scaleout.ray_settings():
        monkeypatch.setenv(name, "")
    ray = ModuleType("ray")
    ray._private = SimpleNamespace(ray_constants=SimpleNamespace())
    ray._raylet = SimpleNamespace(AuthenticationMode=SimpleNamespace(TOKEN="token"))
    if mode is not None:
        ray._raylet.get_authentication_mode = mode
    for name, module in {"ray": ray, "ray.exceptions": ModuleType("e"), "ray.util": ModuleType("u")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ConfigError, match="does not ask for a token"):
        open_pool(1)
