"""Runs the key centre or the server of `sealed` in a child process that kills itself (SIGKILL) at a chosen point.

    python crash_lab.py kdc|server|kdc-again|kdc-history [points...]

Points are counted: after every frame a role receives, before and after every commit of its store, before every frame
it sends; ``kdc-again`` dies at that point of every life, ``kdc-history`` keeps a score history. For each point one line
of JSON says what the other parties saw. The parent plays the other roles and the network: what it reads from a dying
child counts as seen, but is lost on the way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from sealed_lab import N, make_lab

from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.protocol import codec, stream
from ebscfl.protocol.messages import Message, Release, ReleaseRequest, ScoreAnswer
from ebscfl.protocol.roles import Outgoing
from ebscfl.protocol.rounds import next_round_id, training_round_of
from ebscfl.protocol.sealed.history import NOTE
from ebscfl.protocol.sealed.round_store import RoundStore
from ebscfl.protocol.sealed.server import SealedServer
from ebscfl.protocol.sealed.store import SqliteStore
from ebscfl.protocol.states import State
from ebscfl.rules.score_history import HistorySettings

BATCH = 3
ROUNDS = 2
NEVER = 10**9
NO_OPTIONS: Mapping[str, Any] = {}
HISTORY = {"history": True, "history_settings": HistorySettings(weight="record", warmup=2)}
HISTORY_ROUNDS = 4


class Died(Exception):
    """The child is gone."""


class Fuse:
    """Counts points; at one of them the process ends as by ``kill -9``."""

    def __init__(self, at: int | None, report: Path) -> None:
        self.at, self.report, self.count = at, report, 0

    def tick(self, label: str) -> None:
        self.count += 1
        if self.at is None:
            with self.report.open("a") as out:
                print(label, file=out)
        elif self.count == self.at:
            self.report.write_text(label)
            os.kill(os.getpid(), signal.SIGKILL)


class FusedStream:
    """Ticks after every frame that came in and before every frame that goes out."""

    def __init__(self, raw: BinaryIO, fuse: Fuse) -> None:
        self.raw, self.fuse, self.reads = raw, fuse, 0

    def read(self, size: int) -> bytes:
        data = self.raw.read(size)
        self.reads += 1
        if self.reads % 2 == 0 and len(data) == size:
            self.fuse.tick("received")
        return data

    def write(self, data: bytes) -> int:
        if len(data) == 13 and data[0] != stream.END:
            self.fuse.tick("sending")
        return self.raw.write(data)

    def flush(self) -> None:
        self.raw.flush()


def ticking(fuse: Fuse, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
    fuse.tick(f"before {name}")
    result = real(*args, **named)
    fuse.tick(f"after {name}")
    return result


def fused(kind: type, names: tuple[str, ...]) -> Callable[..., Any]:
    """A store whose writing methods tick before and after."""

    def make(fuse: Fuse, path: Path) -> Any:
        store = kind(path)
        for name in names:
            setattr(store, name, partial(ticking, fuse, name, getattr(store, name)))
        return store

    return make


COMMITS = ("bind", "enrol", "commit_updates", "open_round", "put_note", "record_answers", "release")
fused_kdc_store = fused(SqliteStore, COMMITS)
fused_round_store = fused(RoundStore, ("use", "keep_sum"))


def kdc_life(source: Any, sink: Any, fuse: Fuse, folder: Path, options: Mapping[str, Any] = NO_OPTIONS) -> None:
    lab = make_lab(store=fused_kdc_store(fuse, folder / "kdc.sqlite"), enrol=False, **options)
    stream.serve(lab.kdc, source, sink)


def server_life(source: Any, sink: Any, fuse: Fuse, folder: Path) -> None:
    lab = make_lab(enrol=False)
    server = SealedServer(lab.setup, lab.params, store=fused_round_store(fuse, folder / "server.sqlite"))
    server._batch_size = BATCH

    def start(argument: bytes) -> list[Outgoing]:
        round_id = next_round_id(int(argument), server.round_id)
        return server.start_round(round_id, range(N), lab.server_updates)

    def outcome(_: bytes) -> bytes:
        if server.outcome is None:
            return b""
        document = {"round": server.round_id, "included": server.outcome.included}
        return json.dumps(document).encode() + b"\n" + server.outcome.aggregates.tobytes()

    stream.serve(
        server, source, sink,
        steps={
            "start": start,
            "resume": lambda _: server.resume_release(),
            "round": lambda _: str(server.round_id).encode(),
            "close": lambda _: server.close_uploads(),
            "finish": lambda _: server.finish_round(),
            "outcome": outcome,
        },
    )  # fmt: skip


class Child:
    """A role's process; `restart` gives it a new life on the same files."""

    def __init__(self, life: Callable[..., None], folder: Path, at: int | None, *, again: bool = False) -> None:
        self.life, self.folder, self.lives = life, folder, 0
        self.later = at if again and at is not None else NEVER
        self.start(at)

    def start(self, at: int | None) -> None:
        self.lives += 1
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            fuse = Fuse(at, self.folder / f"points-{self.lives}")
            source, sink = (FusedStream(theirs.makefile(mode), fuse) for mode in ("rb", "wb"))
            try:
                self.life(source, sink, fuse, self.folder)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        self.source, self.sink = ours.makefile("rb"), ours.makefile("wb")
        ours.close()

    def restart(self) -> None:
        status = self.stop()
        assert os.WIFSIGNALED(status), "the child failed instead of being killed"
        self.start(self.later)

    def stop(self) -> int:
        self.source.close()
        with contextlib.suppress(BrokenPipeError):
            self.sink.close()
        return os.waitpid(self.pid, 0)[1]

    def call(self, frame: stream.Frame, seen: Callable[[stream.Frame], None]) -> list[stream.Frame]:
        try:
            stream.write_frame(self.sink, frame)
        except (BrokenPipeError, ConnectionResetError):
            raise Died from None
        answers = []
        while True:
            try:
                answer = stream.read_frame(self.source)
            except ConnectionResetError:
                answer = None
            if answer is None:
                raise Died
            if answer.kind == stream.END:
                return answers
            seen(answer)
            answers.append(answer)


class Witness:
    """What left the key centre, whoever received it."""

    def __init__(self, run_tag: bytes) -> None:
        self.run_tag = run_tag
        self.answers: dict[tuple[int, int], set[tuple[object, ...]]] = defaultdict(set)
        self.releases: dict[int, set[bytes]] = defaultdict(set)
        self.sets: dict[int, set[tuple[int, ...]]] = defaultdict(set)

    def message(self, message: Message) -> None:
        if isinstance(message, ScoreAnswer):
            for client, answer, reason in zip(message.clients, message.answers, message.refusals, strict=True):
                self.answers[message.round_id, client].add((*map(int, answer), reason))
        if isinstance(message, Release):
            self.releases[message.round_id].add(message.pad_sum.tobytes())

    def frame(self, frame: stream.Frame) -> None:
        self.message(codec.decode(frame.data, self.run_tag))

    def request(self, message: Message) -> None:
        if isinstance(message, ReleaseRequest):
            self.sets[message.round_id].add(message.included)

    def summary(self) -> dict[str, object]:
        return {
            "keys_answered_twice": sum(len(found) > 1 for found in self.answers.values()),
            "released_twice": sum(len(found) > 1 for found in self.releases.values()),
            "attempts_released": [training_round_of(round_id) for round_id in sorted(self.releases)],
        }


def crash_kdc(
    folder: Path, at: int | None, *, again: bool = False, options: Mapping[str, Any] = NO_OPTIONS
) -> dict[str, object]:
    """The key centre dies; server and clients live on and ask again what was not answered."""
    lab = make_lab(enrol=False, **options)
    lab.server._batch_size = BATCH
    witness, child = Witness(lab.setup.run_id), Child(partial(kdc_life, options=options), folder, at, again=again)

    def ask(sender: Address, message: Message) -> list[Message]:
        frame = stream.message_frame(sender, codec.encode(message, lab.setup.run_id))
        return [codec.decode(a.data, lab.setup.run_id) for a in child.call(frame, witness.frame)]

    def pump(outgoing: list[Outgoing]) -> None:
        queue = list(outgoing)
        while queue:
            out = queue.pop(0)
            if out.to != KDC:
                continue
            witness.request(out.message)
            try:
                for answer in ask(SERVER, out.message):
                    queue += lab.to_server(answer, KDC)
            except Died:
                child.restart()
                queue = lab.server.pending()

    for i, client in enumerate(lab.clients):
        while client.state is not State.READY:
            try:
                for answer in ask(client_address(i), client.enrol()[0].message):
                    client.receive(KDC, codec.encode(answer, lab.setup.run_id))
            except Died:
                child.restart()
    exact, included, aggregates = [], [], []
    for training_round in range(1, (HISTORY_ROUNDS if options else ROUNDS) + 1):
        round_id = next_round_id(training_round, lab.server.round_id)
        pump(lab.server.start_round(round_id, range(N), lab.server_updates))
        for i, upload in enumerate(lab.uploads(round_id)):
            pump(lab.to_server(upload, client_address(i)))
        pump(lab.server.close_uploads())
        pump(lab.server.close_uploads())
        pump(lab.server.finish_round())
        assert lab.server.outcome is not None, lab.server.refusal
        exact.append(bool(np.array_equal(lab.server.outcome.aggregates, lab.reference(range(N), round_id))))
        included.append(len(lab.server.outcome.included))
        aggregates.append(lab.server.outcome.aggregates.tolist())
    child.stop()
    found: dict[str, object] = {"lives": child.lives, "exact": exact, "included": included, **witness.summary()}
    if options:
        store = SqliteStore(folder / "kdc.sqlite")
        note = store.note(NOTE)
        store.close()
        assert note is not None
        found |= {"aggregates": aggregates, "note": note.decode()}
    return found


class ServerPlay:
    """The server dies once; key centre and clients live on, and the driver lets the server resume or start over."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.lab = make_lab(store=folder / "kdc.sqlite")
        self.witness = Witness(self.lab.setup.run_id)
        self.child = Child(server_life, folder, at)
        self.resumed = 1  # lives that have nothing left to resume

    def call(self, frame: stream.Frame) -> bytes:
        """One frame to the server and everything between it and the key centre; the note it left, if any."""
        note, queue = b"", [frame]
        while queue:
            for answer in self.child.call(queue.pop(0), lambda _: None):
                if answer.kind == stream.NOTE:
                    note = answer.data
                elif answer.address == KDC:
                    request = codec.decode(answer.data, self.lab.setup.run_id)
                    self.witness.request(request)
                    for reply in self.lab.to_kdc(request):
                        self.witness.message(reply)
                        queue.append(stream.message_frame(KDC, codec.encode(reply, self.lab.setup.run_id)))
        return note

    def outcome(self) -> tuple[dict[str, Any], np.ndarray] | None:
        note = self.call(stream.step_frame("outcome"))
        if not note:
            return None
        head, _, data = note.partition(b"\n")
        return json.loads(head), np.frombuffer(data, dtype=np.float64).reshape(self.lab.server_updates.shape)

    def attempt(self, training_round: int) -> tuple[dict[str, Any], np.ndarray] | None:
        """Resume a release that was asked for, or play the round under a fresh id."""
        if self.resumed < self.child.lives:
            self.call(stream.step_frame("resume"))
            self.resumed = self.child.lives
            found = self.outcome()
            if found is not None and training_round_of(found[0]["round"]) == training_round:
                return found
        self.call(stream.step_frame("start", str(training_round).encode()))
        round_id = int(self.call(stream.step_frame("round")))
        for i, upload in enumerate(self.lab.uploads(round_id)):
            self.call(stream.message_frame(client_address(i), codec.encode(upload, self.lab.setup.run_id)))
        for step in ("close", "close", "finish"):
            self.call(stream.step_frame(step))
        return self.outcome()

    def play(self) -> dict[str, object]:
        exact, included = [], []
        for training_round in range(1, ROUNDS + 1):
            found = None
            while found is None:
                try:
                    found = self.attempt(training_round)
                except Died:
                    self.child.restart()
            document, aggregates = found
            exact.append(bool(np.array_equal(aggregates, self.lab.reference(range(N), document["round"]))))
            included.append(len(document["included"]))
        self.child.stop()
        summary = self.witness.summary()
        summary["served"] = self.lab.kdc.state is State.SERVING
        return {"lives": self.child.lives, "exact": exact, "included": included, **summary}


def crash_server(folder: Path, at: int | None) -> dict[str, object]:
    return ServerPlay(folder, at).play()


def main(role: str, chosen: list[int]) -> None:
    play = {
        "kdc": crash_kdc,
        "kdc-again": partial(crash_kdc, again=True),
        "kdc-history": partial(crash_kdc, options=HISTORY),
        "server": crash_server,
    }[role]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"at": 0, **play(Path(folder), None)}), flush=True)
        points = len((Path(folder) / "points-1").read_text().splitlines())
    for at in chosen or range(1, points + 1):
        with tempfile.TemporaryDirectory() as folder:
            document = play(Path(folder), at)
            label = (Path(folder) / "points-1").read_text()
            print(json.dumps({"at": at, "label": label, **document}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(at) for at in sys.argv[2:]])
