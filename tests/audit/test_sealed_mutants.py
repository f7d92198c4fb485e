"""Leave out one ingredient of `sealed` at a time, in the real roles: the audit must go red each time, and only then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebscfl.audit.run import AuditSettings, alarms_of, audit_sealed
from ebscfl.field import Words
from ebscfl.ids import SERVER
from ebscfl.protocol.messages import Release, ScoreAnswer
from ebscfl.protocol.roles import Outgoing
from ebscfl.protocol.sealed import client as client_role
from ebscfl.protocol.sealed import kdc as kdc_role
from ebscfl.protocol.sealed import pad_work
from ebscfl.protocol.sealed.words import to_wire
from ebscfl.sealed import ClientKeys, SealedParameters, client_keys, encode, fold, new_sum, pads

SMALL = AuditSettings(protocol="sealed", clients=8, clusters=2, dim=600, seed=11, rounds=24)
Patch = Callable[[pytest.MonkeyPatch], None]


def alarms(settings: AuditSettings = SMALL) -> list[str]:
    return [reason for finding in audit_sealed(settings) for reason in alarms_of(finding)]


def on_both_sides(patch: pytest.MonkeyPatch, keys: Callable[..., ClientKeys]) -> None:
    """Client and key center derive their keys with the same, weaker, function."""
    patch.setattr(client_role, "client_keys", keys)
    patch.setattr(kdc_role, "client_keys", keys)


def pads_on_both_sides(patch: pytest.MonkeyPatch, weaker: Callable[..., Words]) -> None:
    # the package re-exports a function of the module's name, so the modules are reached through sys.modules
    import sys

    patch.setattr(sys.modules["ebscfl.sealed.encode"], "pads", weaker)
    patch.setattr(pad_work, "pads", weaker)


def without_kappa(patch: pytest.MonkeyPatch) -> None:
    """t = b and alpha = rho: every trust weight in the clear."""
    on_both_sides(patch, lambda *args: dataclasses.replace(client_keys(*args), kappa=0))


def kappa_of_the_run(patch: pytest.MonkeyPatch) -> None:
    """One kappa for all rounds: alphas of two rounds differ by the change of the weight."""

    def keys(params: SealedParameters, master: bytes, run: str, round_id: int, client: int) -> ClientKeys:
        fresh = client_keys(params, master, run, round_id, client)
        return dataclasses.replace(fresh, kappa=client_keys(params, master, run, 0, client).kappa)

    on_both_sides(patch, keys)


def keys_of_the_run(patch: pytest.MonkeyPatch) -> None:
    """All keys used again in every round: uploads differ by the change of the update."""
    on_both_sides(patch, lambda params, master, run, round_id, client: client_keys(params, master, run, 0, client))


def without_first_pad(patch: pytest.MonkeyPatch) -> None:
    """c = x."""
    pads_on_both_sides(patch, _zeroed(0))


def without_second_pad(patch: pytest.MonkeyPatch) -> None:
    """t = kappa x, whose count coordinate gives kappa away."""
    pads_on_both_sides(patch, _zeroed(1))


def _zeroed(row: int) -> Callable[..., Words]:
    def weaker(params: SealedParameters, keys: ClientKeys, out: Words | None = None) -> Words:
        words = pads(params, keys, out)
        words[row] = 0
        return words

    return weaker


def answers_for_the_trusted_only(patch: pytest.MonkeyPatch) -> None:
    """alpha is sent only where trust is positive: silence tells who is rejected."""
    answer = kdc_role.SealedKdc._answer

    def fewer(self: Any, current: Any, message: Any, *rest: Any) -> list[Outgoing]:
        ((to, reply),) = answer(self, current, message, *rest)
        assert isinstance(reply, ScoreAnswer)
        known = self._store.answers(message.round_id)
        refusals = tuple("not trusted" if known[i].rho == 0 else "" for i in reply.clients)
        kept = np.array([not reason for reason in refusals], dtype=np.uint64)
        return [Outgoing(to, dataclasses.replace(reply, answers=reply.answers * kept[:, None], refusals=refusals))]

    patch.setattr(kdc_role.SealedKdc, "_answer", fewer)
    patch.setattr(kdc_role, "check_quorum", lambda params, members: None)  # rounds go on with the trusted ones


def a_release_for_each_client(patch: pytest.MonkeyPatch) -> None:
    """Beside P of the set, the P of every single client."""
    on_release = kdc_role.SealedKdc.on_release_request

    def more(self: Any, sender: Any, message: Any) -> list[Outgoing]:
        params = self._params
        out = on_release(self, sender, message)
        given = self._store.answers(message.round_id)
        for i in message.included:
            keys, total = self._keys(message.round_id, i), new_sum(params)
            answer = kdc_role.MaskedWeight(given[i].alpha, given[i].guard_alpha)
            fold(params, total, [answer], [pads(params, keys)], [keys.guard_pad])
            slots = np.ones(params.num_clusters, dtype=np.uint8)
            out.append(Outgoing(SERVER, Release(message.round_id, slots, to_wire(total.words), 0.0)))
        return out

    patch.setattr(kdc_role.SealedKdc, "on_release_request", more)


MUTANTS: dict[str, tuple[Patch, str]] = {
    "kappa left out": (without_kappa, "weights"),
    "kappa used twice": (kappa_of_the_run, "weights"),
    "keys used twice": (keys_of_the_run, "uploads"),
    "no pad on c": (without_first_pad, "uploads"),
    "no pad on t": (without_second_pad, "uploads"),
    "alpha for the trusted only": (answers_for_the_trusted_only, "weights"),
    "P for each client": (a_release_for_each_client, "uploads"),
}


def test_the_whole_protocol_is_green() -> None:
    assert alarms() == []


@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_green_for_other_seeds_and_sizes(seed: int) -> None:
    assert alarms(AuditSettings(protocol="sealed", clients=5, clusters=3, dim=700, seed=seed, rounds=12)) == []


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_missing_ingredient_is_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, finding = MUTANTS[name]
    plant(monkeypatch)
    assert any(f": {finding} " in reason for reason in alarms())


def test_inputs_are_encoded_as_the_readings_assume() -> None:
    """The count coordinate is one half: what `counted` divides by."""
    from ebscfl.sealed import plan

    params = plan(8, 20, 2)
    encoded = encode(params, np.ones(20), 1, bytes(32), 0, 0)
    assert encoded.slot[-1] == params.one_half
