"""The apps over a grid in memory: real roles, files, TLS to the key centre; only Flower's own transport is replaced."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

from ebscfl.config import load_preset
from ebscfl.errors import ConfigError, RoundAborted, UsageError
from ebscfl.federation.coordinator import Coordinator
from ebscfl.federation.loopback import Loopback
from ebscfl.federation.rounds import Deadlines
from ebscfl.federation.training import Training
from ebscfl.flower import client_app, server_app
from ebscfl.flower import exchange as exchange_module
from ebscfl.flower.exchange import FlowerExchange
from ebscfl.flower.mods import encoding_mod
from ebscfl.flower.records import NONCE_SIZE, Question, pack_answer, pack_question, read_answer, read_question
from ebscfl.flower.strategy import ProtocolStrategy
from ebscfl.kdc_service.deployment import RunFile, open_stub, write_durably
from ebscfl.protocol import codec
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of

SETS = ("data.clients=4", "data.groups=2", "rounds=3", "attacks=[]", "protocol=sealed")
QUICK = Deadlines(first_s=1.0, last_s=1.0, quorum=3, pause_s=0.001)
CONFIG = load_preset("smoke", SETS)
TRAINING = Training(CONFIG)


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower gives every task these before its app runs."""
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    for module in (client_app, server_app):  # a process of its own would build the data once a message
        monkeypatch.setattr(module, "Training", lambda config, attack: TRAINING if config == CONFIG else 1 / 0)


class FakeGrid:
    """Nodes that run a ClientApp when they are asked; node 100 + i is client i."""

    def __init__(self, loop: Loopback, app: ClientApp, *, share: bool = False) -> None:
        self.nodes = [100 + i for i in range(loop.setup.num_clients)]
        self.app, self.loop, self.share = app, loop, share
        self.replies: dict[str, Message] = {}
        self.pushed: list[Message] = []
        self.change = lambda node, reply: reply

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def context(self, node: int) -> Context:
        config = {"directory": str(self.loop.client_dir(node - 100)), "share-evaluation": self.share}
        return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"message {len(self.pushed)}"
            self.pushed.append(message)
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_src_node_id"] = 1
            reply = self.change(node, self.app(message, self.context(node)))
            if reply is not None:
                reply.metadata.__dict__["_src_node_id"] = node
                self.replies[name] = reply
            ids.append(name)
        return ids

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self.replies.pop(i) for i in list(ids) if i in self.replies]


@pytest.fixture
def loop(tmp_path: Path):
    server = CONFIG.server
    setup = Setup("sealed", 4, server.clusters, TRAINING.cell.env.model.dim, b"run-tag!", server.normalize)
    with Loopback(tmp_path, setup) as made:
        for directory in (made.server_dir, *(made.client_dir(i) for i in range(4))):
            write_durably(directory / "config.toml", CONFIG.to_toml().encode())
        yield made


def coordinator(loop: Loopback) -> Coordinator:
    made = Coordinator(loop.server_dir, TRAINING, open_stub(loop.server_dir), QUICK)
    loop._closing.append(made.close)
    return made


def test_training_is_one_exchange_a_round_and_learns(loop: Loopback):
    grid, boss = FakeGrid(loop, client_app.app), coordinator(loop)
    strategy = ProtocolStrategy(boss, gather_s=10)
    strategy.summary()
    result = strategy.start(grid, num_rounds=3)
    assert len(grid.pushed) == 4 + 3 * 4  # who is there, then one message a node and round
    assert strategy.exchange is not None
    assert strategy.exchange.dropped == {}
    curve = [line["accuracy_own"] for line in boss._metrics.rounds("rfca", "none")]
    assert curve[-1] > curve[0]
    assert boss.results()[0]["fa"] == curve[-1]
    assert np.array_equal(result.arrays["models"].numpy(), boss.checkpoint.state.models.numpy())
    assert [line["included"] for line in boss._metrics.rounds("rfca", "none")] == [[0, 1, 2, 3]] * 3


def test_it_is_the_simulators_training(loop: Loopback):
    """Same models as one step of RFCA in the clear, up to the protocol's fixed point."""
    boss = coordinator(loop)
    ProtocolStrategy(boss, gather_s=10).start(FakeGrid(loop, client_app.app), num_rounds=1)
    training = Training(load_preset("smoke", (*SETS, "protocol=direct")))
    want, _ = training.cell.algorithm.round(training.cell.env, training.start(), 1)
    moved = (want.models - training.start().models).numpy()
    got = (boss.checkpoint.state.models - training.start().models).numpy()
    assert np.linalg.norm(got - moved) / np.linalg.norm(moved) < 5e-3  # sealed's tolerance in the contract suite


def test_a_run_file_that_does_not_fit_the_configuration_is_refused(loop: Loopback):
    run = RunFile.load(loop.server_dir)
    for changes in ({"normalize": "global"}, {"num_clients": 5}, {"dim": 3}, {"protocol": "plain"}):
        wrong = dataclasses.replace(run, setup=dataclasses.replace(run.setup, **changes))
        write_durably(loop.server_dir / "run.json", wrong.to_json().encode())
        with pytest.raises(ConfigError, match=next(iter(changes))):
            coordinator(loop)


def test_a_step_without_a_quorum_is_played_again(loop: Loopback):
    grid, boss = FakeGrid(loop, client_app.app), coordinator(loop)
    boss.deadlines = dataclasses.replace(QUICK, first_s=0.1, last_s=0.1)
    strategy = ProtocolStrategy(boss, gather_s=10)
    silent = iter([True] * 8)  # all four, asked and asked again
    grid.change = lambda node, reply: None if "upload" in reply.content and next(silent, False) else reply
    strategy.start(grid, num_rounds=1)
    assert boss.checkpoint.step == 1
    assert boss.checkpoint.round_id == round_id_of(1, 1)  # the second attempt


def test_a_killed_server_goes_on_from_its_checkpoint(loop: Loopback):
    first = coordinator(loop)
    ProtocolStrategy(first, gather_s=10).start(FakeGrid(loop, client_app.app), num_rounds=2)
    before = first.checkpoint.state.models
    first.close()
    again = coordinator(loop)
    assert again.checkpoint.step == 2
    assert np.array_equal(again.checkpoint.state.models.numpy(), before.numpy())
    grid = FakeGrid(loop, client_app.app)
    ProtocolStrategy(again, gather_s=10).start(grid, num_rounds=3)
    assert again.checkpoint.step == 3
    assert len([m for m in grid.pushed if m.metadata.message_type == "train"]) == 4


def test_bad_replies_are_dropped_and_named_and_the_round_goes_on(loop: Loopback, monkeypatch: pytest.MonkeyPatch):
    """One client fails, in turn by every kind of bad reply; the other three are summed."""
    grid, boss = FakeGrid(loop, client_app.app), coordinator(loop)
    strategy = ProtocolStrategy(boss, gather_s=10)
    bad: list[Any] = [
        lambda reply: Message(Error(5, "crashed"), reply_to=as_question(reply)),
        lambda reply: with_content(reply, {}),
        lambda reply: with_content(reply, {"upload": reply.content["upload"]}),
        lambda reply: with_content(reply, {**reply.content, "more": ConfigRecord({"x": 1})}),
        lambda reply: with_answer(reply, signature=b"0" * 70),
        lambda reply: with_answer(reply, nonce=bytes(NONCE_SIZE)),
        lambda reply: with_answer(reply, round=77),
        lambda reply: with_answer(reply, certificate=b"nobody"),
        lambda reply: with_content(reply, {**reply.content, "upload": record(np.zeros(9, np.float32))}),
        lambda reply: with_content(reply, {**reply.content, "upload": record(np.zeros(9, np.uint8))}),
        lambda reply: with_content(reply, {**reply.content, "upload": record(np.zeros(10**7, np.uint8))}),
        lambda reply: None,
    ]
    boss.deadlines = Deadlines(first_s=0.05, last_s=0.05, quorum=3, pause_s=0.001)
    strategy.exchange = exchange = FlowerExchange(grid, loop.server_dir, pause_s=0.001)
    exchange.gather(wait_s=10)
    for change in bad:
        exchange.dropped.clear()
        grid.change = lambda node, reply, change=change: change(reply) if node == 102 else reply
        end = boss.step(exchange)
        assert end.outcome.included == (0, 1, 3)
        assert list(end.culprits) == ["client 2"]
        if change is not bad[-1]:
            assert list(exchange.dropped) == ["node 102"]


def as_question(reply: Message) -> Message:
    message = Message(RecordDict(), dst_node_id=102, message_type="train")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    message.metadata.__dict__["_src_node_id"] = 1
    return message


def record(value: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"upload": Array(value)})


def with_content(reply: Message, content: dict[str, Any]) -> Message:
    return Message(RecordDict(dict(content)), reply_to=as_question(reply))


def with_answer(reply: Message, **changes: Any) -> Message:
    table = {**reply.content["answer"], **changes}
    return with_content(reply, {**reply.content, "answer": ConfigRecord(table)})


def test_no_node_speaks_for_another_client(loop: Loopback):
    """Node 103 is given client 2's place: its certificate still says 3, and client 2 is simply missing."""
    question = Question(1, bytes(NONCE_SIZE), np.zeros((1, 1), np.float32))
    message = Message(pack_question(question), dst_node_id=102, message_type="train")
    message.metadata.__dict__["_message_id"], message.metadata.__dict__["_src_node_id"] = "m", 1
    limits = {"authority": (loop.server_dir / "ca.pem").read_bytes(), "run_id": loop.setup.run_id, "limit": 100}

    def answered(directory: Path, signed_for: int, sent_by: int) -> Message:
        reply = Message(pack_answer(directory, signed_for, question, b"upload"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = sent_by
        return reply

    assert read_answer(answered(loop.client_dir(3), 103, 103), question, **limits).client == 3
    with pytest.raises(Exception, match="not good"):  # replayed through another node
        read_answer(answered(loop.client_dir(3), 103, 102), question, **limits)
    with pytest.raises(Exception, match="no client"):
        read_answer(answered(loop.server_dir, 102, 102), question, **limits)


def test_a_malformed_question_is_refused_without_training(loop: Loopback):
    grid = FakeGrid(loop, client_app.app)
    grid.change = lambda node, reply: kept.append(reply) or reply
    kept: list[Message] = []
    good = Question(1, bytes(NONCE_SIZE), np.zeros((2, 5), np.float32))
    questions = [
        RecordDict(),
        RecordDict({"question": ConfigRecord({"round": 1})}),
        RecordDict({"question": ConfigRecord({"round": -1, "nonce": bytes(NONCE_SIZE)})}),
        RecordDict({"question": ConfigRecord({"round": 1, "nonce": b"short"})}),
        pack_question(good),  # models of another shape
        pack_question(Question(1, bytes(NONCE_SIZE))),  # no models at all
    ]
    for content in questions:
        grid.push_messages([Message(content, dst_node_id=100, message_type="train")])
    assert all(reply.has_error() for reply in kept)
    assert not (loop.client_dir(0) / "upload.bin").exists()


def test_the_encoding_mod_is_outermost_and_lets_nothing_plain_out(loop: Loopback):
    seen: list[np.ndarray] = []
    dim, choice = loop.setup.dim, ConfigRecord({"cluster": 1})

    def clip(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        seen.append(reply.content["update"]["update"].numpy())
        return reply

    answers = iter(
        [
            {"update": ArrayRecord({"update": Array(np.ones(dim, np.float32))}), "choice": choice},
            {"update": ArrayRecord({"update": Array(np.full(dim, np.nan, np.float32))}), "choice": choice},
            {"model": ArrayRecord({"w": Array(np.ones(dim, np.float32))})},
        ]
    )  # fmt: skip
    app = ClientApp(mods=[encoding_mod, clip])
    app.train()(lambda message, context: Message(RecordDict(next(answers)), reply_to=message))
    grid, kept = FakeGrid(loop, app), []
    grid.change = lambda node, reply: kept.append(reply) or reply
    for round_id in (1, 2):
        question = Question(round_id, bytes(NONCE_SIZE), np.zeros((2, dim), np.float32))
        grid.push_messages([Message(pack_question(question), dst_node_id=100, message_type="train")])
    assert set(kept[0].content) == {"answer", "upload"}
    assert np.array_equal(seen[0], np.ones(dim, np.float32))  # the inner mod met the plain update
    upload = kept[0].content["upload"]["upload"].numpy().tobytes()
    assert np.ones(8, np.float32).tobytes() not in upload
    assert kept[1].has_error()
    assert "finite" in kept[1].error.reason


def test_flowers_own_local_dp_runs_before_the_encoding(tmp_path: Path):
    """Its `LocalDpMod` clips the plain update, and the key centre's pads come after: seen where nothing is hidden."""
    setup = Setup("plain", 4, CONFIG.server.clusters, TRAINING.cell.env.model.dim, b"run-tag!")
    with Loopback(tmp_path, setup) as loop:
        for i in range(4):
            write_durably(loop.client_dir(i) / "config.toml", CONFIG.to_toml().encode())
        models = np.asarray(TRAINING.start().models, dtype=np.float32)
        want, cluster = TRAINING.update(0, models, round_id_of(1))
        norms = {}
        for name, mods in {"none": [], "clipped": [LocalDpMod(0.125, 0.0, 1.0, 1e-5)],
                           "noisy": [LocalDpMod(1e9, 0.5, 1.0, 1e-5)]}.items():  # fmt: skip
            (loop.client_dir(0) / "upload.bin").unlink(missing_ok=True)
            grid, kept = FakeGrid(loop, client_app.make_app(*mods)), []
            grid.change = lambda node, reply, kept=kept: kept.append(reply) or reply
            question = Question(round_id_of(1), bytes(NONCE_SIZE), models)
            grid.push_messages([Message(pack_question(question), dst_node_id=100, message_type="train")])
            assert not kept[0].has_error(), kept[0].error
            assert set(kept[0].content) == {"answer", "upload"}
            upload = codec.decode(kept[0].content["upload"]["upload"].numpy().tobytes(), b"run-tag!")
            assert upload.cluster == cluster
            norms[name] = np.linalg.norm(upload.update)
            if name == "noisy":
                spread = float(np.std(upload.update - want))
        assert norms["none"] == pytest.approx(np.linalg.norm(want), rel=1e-6)
        assert norms["clipped"] == pytest.approx(0.125, rel=1e-4)
        assert norms["none"] > 0.125
        # Flower's own formula: sensitivity sqrt(2 ln(1.25 / delta)) / epsilon
        assert spread == pytest.approx(0.5 * np.sqrt(2 * np.log(1.25e5)), rel=0.05)


def test_evaluation_is_the_owners_choice(loop: Loopback):
    boss = coordinator(loop)
    strategy = ProtocolStrategy(boss)
    for share in (False, True):
        grid = FakeGrid(loop, client_app.app, share=share)
        questions = strategy.configure_evaluate(1, strategy.arrays(), None, grid)
        replies = grid.pull_messages(grid.push_messages(list(questions)))
        metrics = strategy.aggregate_evaluate(1, replies)
        if not share:
            assert metrics is None
            continue
        assert metrics["clients"] == 4
        assert len(metrics["loss"]) == len(metrics["accuracy"]) == loop.setup.num_clusters
        liar = Message(RecordDict({"scores": MetricRecord({"loss": [0.0], "accuracy": [1e9]})}), reply_to=questions[0])
        assert strategy.aggregate_evaluate(1, [*replies, liar])["clients"] == 4
    assert [m.metadata.message_type for m in strategy.configure_train(1, strategy.arrays(), None, grid)] == [
        "train"
    ] * 4
    with pytest.raises(UsageError, match="start"):
        strategy.aggregate_train(1, [])


def test_nobody_there_aborts(loop: Loopback):
    grid = FakeGrid(loop, client_app.app)
    grid.nodes = []
    with pytest.raises(RoundAborted, match="no client"):
        FlowerExchange(grid, loop.server_dir, pause_s=0.001).gather(wait_s=0.05)


def test_a_node_that_is_away_is_asked_when_it_is_back(loop: Loopback, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange_module, "LOOK_S", 0.02)
    grid, boss = FakeGrid(loop, client_app.app), coordinator(loop)
    exchange = FlowerExchange(grid, loop.server_dir, pause_s=0.001)
    exchange.gather(wait_s=10)
    everybody, grid.nodes = grid.nodes, grid.nodes[:-1]
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: setattr(grid, "nodes", everybody) or pull(ids)  # back after the first look
    end = boss.step(exchange)
    assert end.outcome.included == (0, 1, 2, 3)
    assert end.asked_again == ()  # by the exchange, long before the deadline


@pytest.mark.parametrize("seen_away", [True, False])
def test_a_question_that_died_with_its_client_is_asked_again(
    seen_away: bool, loop: Loopback, monkeypatch: pytest.MonkeyPatch
):
    """A SuperNode is killed with the question in its hands: Flower delivers nothing twice, so the exchange must."""
    monkeypatch.setattr(exchange_module, "LOOK_S", 0.02)
    monkeypatch.setattr(exchange_module, "AGAIN_S", 60.0 if seen_away else 0.1)
    grid, boss = FakeGrid(loop, client_app.app), coordinator(loop)
    boss.deadlines = dataclasses.replace(QUICK, first_s=20.0)
    exchange = FlowerExchange(grid, loop.server_dir, pause_s=0.001)
    exchange.gather(wait_s=10)
    everybody, lost = list(grid.nodes), iter([True])

    def die(node: int, reply: Message) -> Message | None:
        if node == 102 and next(lost, False):
            grid.nodes = [n for n in everybody if n != 102] if seen_away else everybody
            return None
        if node == 103:
            away, looks = grid.nodes, iter(range(3))
            grid.get_node_ids = lambda: everybody if next(looks, None) is None else away  # type: ignore[method-assign]
        return reply

    grid.change = die
    end = boss.step(exchange)
    assert end.outcome.included == (0, 1, 2, 3)
    assert end.asked_again == ()
    assert len([m for m in grid.pushed if m.metadata.message_type == "train"]) == 5


def test_the_server_app_runs_to_the_end_and_writes_results(loop: Loopback):
    config = {"directory": str(loop.server_dir), "steps": 2, "first-s": 5.0, "last-s": 5.0, "quorum": 3}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server_app.main(FakeGrid(loop, client_app.app), context)
    assert '"steps": 2' in (loop.server_dir / "results.json").read_text()
    assert (
        read_question(Message(pack_question(Question(1, bytes(16))), dst_node_id=1, message_type="query")).models
        is None
    )
