"""Any order in which a network may deliver gives the integer reference bit for bit: late, repeated, asked again.

Every message in flight between server and key centre sits in a bag; hypothesis draws what is delivered next, what is
delivered twice, and which uploads never come.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed_lab import Lab, N, make_lab

from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.protocol.messages import Message
from ebscfl.protocol.states import State

Flight = tuple[Address, Address, Message]  # sender, receiver, message


class Network:
    """Messages in flight, delivered in drawn order; each may be delivered a second time."""

    def __init__(self, lab: Lab, data: st.DataObject) -> None:
        self.lab, self.data, self.bag = lab, data, []  # type: ignore[var-annotated]

    def send(self, sender: Address, outgoing: list[tuple[Address, Message]]) -> None:
        self.bag += [(sender, to, message) for to, message in outgoing if to in (SERVER, KDC)]

    def deliver_one(self, *, keep: bool) -> None:
        sender, to, message = self.bag.pop(self.data.draw(st.integers(0, len(self.bag) - 1)))
        if keep and self.data.draw(st.booleans()):
            self.bag.append((sender, to, message))
        if to == KDC:
            self.send(KDC, [(SERVER, answer) for answer in self.lab.to_kdc(message, sender)])
        else:
            self.send(SERVER, [tuple(out) for out in self.lab.to_server(message, sender)])  # type: ignore[misc]

    def settle(self) -> None:
        while self.bag:
            self.deliver_one(keep=False)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_interleaving_gives_the_reference(data: st.DataObject) -> None:
    lab = make_lab(dim=20, quorum=2)
    lab.server._batch_size = data.draw(st.integers(1, 4))
    silent = set(data.draw(st.lists(st.integers(0, N - 1), max_size=N - 2)))
    network = Network(lab, data)
    for round_id in (1 << 16, 2 << 16):
        lab.start(round_id)
        for client, upload in enumerate(lab.uploads(round_id)):
            if client not in silent:
                network.bag.append((client_address(client), SERVER, upload))
        for _ in range(data.draw(st.integers(0, 25))):
            if network.bag:
                network.deliver_one(keep=True)
        network.settle()
        for _ in range(2):
            network.send(SERVER, [tuple(out) for out in lab.server.close_uploads()])  # type: ignore[misc]
            network.send(SERVER, [tuple(out) for out in lab.server.pending()])  # type: ignore[misc]
            network.settle()
        network.send(SERVER, [tuple(out) for out in lab.server.finish_round()])  # type: ignore[misc]
        network.settle()
        heard = [i for i in range(N) if i not in silent]
        assert lab.server.outcome is not None
        assert lab.server.outcome.included == tuple(heard)
        assert np.array_equal(lab.server.outcome.aggregates, lab.reference(heard, round_id))
        assert lab.kdc.state is State.SERVING
        blamed = {address for address in lab.server.culprits if address.client not in silent}
        repeated = {a for a in blamed if "second upload" in lab.server.culprits[a]}
        assert blamed == repeated  # nobody who sent once is named


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(N)), st.integers(1, 5))
def test_order_and_batching_of_uploads_do_not_change_a_bit(order: list[int], batch: int) -> None:
    lab = make_lab(dim=20)
    lab.server._batch_size = batch
    lab.start(1)
    uploads = lab.uploads(1)
    for client in order:
        lab.deliver(lab.to_server(uploads[client], client_address(client)))
    lab.close()
    lab.deliver(lab.server.finish_round())
    assert lab.server.outcome is not None
    assert np.array_equal(lab.server.outcome.aggregates, lab.reference(range(N)))
