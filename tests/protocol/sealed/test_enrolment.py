"""Enrolment can be repeated but not changed; late uploads change nothing."""

from __future__ import annotations

import numpy as np
from sealed_lab import RUN_TAG, N, make_lab, play_lab

from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.protocol import codec
from ebscfl.protocol.messages import Enrolment, EnrolRequest, Refusal
from ebscfl.protocol.sealed.channel import public_key
from ebscfl.protocol.states import State


def test_asking_again_gives_the_same_answer_and_another_key_is_refused() -> None:
    lab = make_lab(enrol=False)
    (request,) = lab.clients[0].enrol()
    (first,) = lab.to_kdc(request.message, client_address(0))
    (again,) = lab.clients[0].enrol()  # the answer was lost
    (second,) = lab.to_kdc(again.message, client_address(0))
    assert second.same_as(first)
    for answer in (first, second):
        lab.clients[0].receive(KDC, codec.encode(answer, RUN_TAG))
    assert lab.clients[0].state is State.READY
    assert not lab.clients[0].culprits
    (refusal,) = lab.to_kdc(EnrolRequest(public_key(bytes([7]) * 32)), client_address(0))
    assert isinstance(refusal, Refusal)
    assert client_address(0) in lab.kdc.culprits


def test_a_refused_client_knows_why_and_may_try_again() -> None:
    lab = make_lab(enrol=False)
    client = lab.clients[0]
    client.enrol()
    client.receive(SERVER, codec.encode(Refusal(0, "no"), RUN_TAG))
    assert client.refusal is None
    assert SERVER in client.culprits
    client.receive(KDC, codec.encode(Refusal(0, "enrolled already"), RUN_TAG))
    assert client.refusal == "enrolled already"
    assert client.state is State.IDLE


def test_nobody_else_can_deal_keys_and_a_second_master_key_is_refused() -> None:
    lab = make_lab(enrol=False)
    client = lab.clients[0]
    (request,) = client.enrol()
    (answer,) = lab.to_kdc(request.message, client_address(0))
    assert isinstance(answer, Enrolment)
    client.receive(SERVER, codec.encode(answer, RUN_TAG))
    assert client.state is State.AWAITING_KEYS
    client.receive(KDC, codec.encode(Enrolment(answer.ephemeral_key, bytes(48)), RUN_TAG))
    assert client.state is State.AWAITING_KEYS
    assert "does not open" in client.culprits[KDC]


def test_servers_and_strangers_cannot_enrol() -> None:
    lab = make_lab(enrol=False)
    for who in (SERVER, client_address(N)):
        assert lab.to_kdc(EnrolRequest(public_key(bytes([7]) * 32)), who) == []
        assert "cannot enrol" in lab.kdc.culprits[who]


def test_an_upload_of_the_last_round_comes_too_late() -> None:
    lab = make_lab(quorum=2)
    lab.start(1)
    late = lab.uploads(1)
    for i in range(1, N):
        lab.deliver(lab.to_server(late[i], client_address(i)))
    lab.close()
    for _ in range(2):
        lab.deliver(lab.to_server(late[0], client_address(0)))  # while the round closes
        assert "not possible now" in lab.server.culprits.pop(client_address(0))
    lab.deliver(lab.server.finish_round())
    lab.deliver(lab.to_server(late[0], client_address(0)))  # when it is over
    lab.start(1 << 16)
    lab.deliver(lab.to_server(late[0], client_address(0)))  # and in the next one
    assert "upload for round 1" in lab.server.culprits[client_address(0)]
    for i, upload in enumerate(lab.uploads(1 << 16)):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())
    assert lab.server.outcome is not None
    assert np.array_equal(lab.server.outcome.aggregates, lab.reference(range(N), 1 << 16))


def test_keys_can_be_wiped() -> None:
    lab = make_lab()
    play_lab(lab, 1)
    for role in (lab.kdc, *lab.clients):
        role.wipe()
        assert not any(array.any() for array in role.secrets())
