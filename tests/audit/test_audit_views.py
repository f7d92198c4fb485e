"""An attack sees a view and nothing else; a view holds what its party received and nothing else."""

from __future__ import annotations

import ast
import gc
import inspect
from pathlib import Path

import numpy as np
import pytest

import ebscfl.audit as audit
from ebscfl import rng
from ebscfl.audit import sealed_uploads
from ebscfl.audit.collusion import collusion
from ebscfl.audit.decode import decode
from ebscfl.audit.differencing import differencing
from ebscfl.audit.kdc_view import kdc_view as estimate_of_kdc
from ebscfl.audit.plain import read
from ebscfl.audit.record import example_truth, kdc_view, play, server_view
from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import Estimate, View, nothing
from ebscfl.errors import UsageError
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.protocol import codec
from ebscfl.protocol.bus import Received

N, M, L = 6, 2, 300
SOURCE = Path(audit.__file__).parent
ATTACKS = {
    "read": ("plain", read),
    "decode": ("paper", decode),
    "spectral": ("paper", spectral),
    "collusion": ("sealed", collusion),
    "kdc-view": ("sealed", estimate_of_kdc),
    "differencing": ("plain", differencing),
}
ATTACK_MODULES = (
    "plain", "decode", "spectral", "paper_keys", "collusion", "differencing", "kdc_view", "sealed_uploads", "views",
)  # fmt: skip
# Where inputs, dealt secrets or other parties' states could come from.
OUT_OF_REACH = ("record", "run", "evidence", "pictures", "dealing", "client", "kdc", "server", "store")


def truths(count: int = 2) -> list[audit.Truth]:
    return [example_truth(N, M, L, rng.root_from_seed(3), index) for index in range(count)]


def view_for(name: str) -> View:
    record = play(ATTACKS[name][0], truths(), seed=3)
    return kdc_view(record) if name == "kdc-view" else server_view(record, corrupt=(1,) if name == "collusion" else ())


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_takes_the_view_only(name: str) -> None:
    parameters = list(inspect.signature(ATTACKS[name][1]).parameters.values())
    assert [p.name for p in parameters] == ["view"]
    assert parameters[0].annotation == "View"


@pytest.mark.parametrize("module", ATTACK_MODULES)
def test_attack_modules_cannot_reach_the_truth(module: str) -> None:
    for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.module.split(".")[-1] not in OUT_OF_REACH, f"{module} imports {node.module}"
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[-1] not in OUT_OF_REACH for alias in node.names)


def through_the_wire(view: View) -> View:
    """The same view rebuilt from bytes: nothing that is not in the messages can travel along."""
    tag = view.public.run_id
    messages = tuple(Received(s, codec.decode(codec.encode(m, tag), tag)) for s, m in view.messages)
    return View(view.role, messages, view.public, view.rounds, view.secret)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_attacks_work_after_everything_but_the_view_is_gone(name: str) -> None:
    attack = ATTACKS[name][1]
    view = view_for(name)
    want = attack(view)
    bare = through_the_wire(view)
    del view
    gc.collect()
    got = attack(bare)
    assert got.targets == want.targets
    assert np.array_equal(got.updates, want.updates)
    assert np.array_equal(got.clusters, want.clusters)


@pytest.mark.parametrize("protocol", ["plain", "paper", "sealed"])
def test_the_servers_view_is_its_transcript_and_its_own_inputs(protocol: str) -> None:
    record = play(protocol, truths(1), seed=3)
    view = server_view(record)
    assert [m for _, m in view.messages] == [m for _, m in record.transcript[SERVER]]
    assert view.secret == b""
    assert view.corrupt == ()
    assert all(own.inputs == () for own in view.rounds)
    hidden = [m for i in range(N) for _, m in record.transcript[client_address(i)]]
    assert not any(m is h for _, m in view.messages for h in hidden)


def test_a_coalition_gets_its_members_messages_and_inputs_only() -> None:
    record = play("sealed", truths(1), seed=3)
    view = server_view(record, corrupt=(0, 4))
    assert view.corrupt == (0, 4)
    want = [record.transcript[a] for a in (SERVER, client_address(0), client_address(4))]
    assert [m for _, m in view.messages] == [m for entries in want for _, m in entries]
    ((own,),) = (view.rounds,)
    assert [(i, k) for i, _, k in own.inputs] == [(i, record.truths[0].clusters[i]) for i in (0, 4)]


def test_the_key_centers_view_holds_no_upload() -> None:
    for protocol in ("paper", "sealed"):
        record = play(protocol, truths(1), seed=3)
        view = kdc_view(record)
        assert [m for _, m in view.messages] == [m for _, m in record.transcript[KDC]]
        assert not any(own.inputs or own.sums is not None for own in view.rounds)


def test_views_and_estimates_print_no_secret_and_check_themselves() -> None:
    view = view_for("kdc-view")
    assert view.secret.hex() not in repr(view)
    assert "root" not in repr(view)
    with pytest.raises(UsageError, match="one cluster"):
        Estimate((1, 2), np.zeros((2, 3)), np.zeros(3, dtype=np.int64))
    with pytest.raises(UsageError, match="has seen no"):
        spectral(view)
    empty = nothing(view, "why")
    assert empty.note == "why"
    assert not empty.updates.any()
    assert (empty.clusters == -1).all()


def test_uploads_are_taken_from_one_round() -> None:
    record = play("plain", truths(2), seed=3)
    view = server_view(record)
    from ebscfl.protocol.messages import PlainUpload

    for position, round_id in enumerate(record.round_ids):
        for client, upload in view.uploads(PlainUpload, round_id):
            assert np.allclose(upload.update, record.truths[position].updates[client], atol=1e-6)


def test_readings_of_sealed_uploads_also_take_the_view_only() -> None:
    for function in (sealed_uploads.seen_rounds, sealed_uploads.weigh):
        assert list(inspect.signature(function).parameters) == ["view"]
