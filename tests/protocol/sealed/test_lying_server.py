"""What only a lying server can send ends its service for good, also after the store is opened again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sealed_lab import ROOT, Lab, make_lab, play_lab

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.protocol.messages import (
    Commitment,
    Message,
    OpenRound,
    Refusal,
    Release,
    ReleaseRequest,
    RoundOpened,
    ScoreAnswer,
    ScoreRequest,
)
from ebscfl.protocol.rounds import LARGEST_ROUND_ID, round_id_of
from ebscfl.protocol.states import State
from ebscfl.sealed import quantize_server_updates


def asked(lab: Lab, clients: tuple[int, ...] | None = None, round_id: int = 1) -> ScoreRequest:
    """An open round and the server's honest question about some clients' uploads, not sent yet."""
    lab.start(round_id)
    uploads = lab.uploads(round_id)
    for i in range(lab.setup.num_clients) if clients is None else clients:
        assert not lab.to_server(uploads[i], client_address(i))
    (out,) = lab.server.flush()
    assert isinstance(out.message, ScoreRequest)
    return out.message


def released(lab: Lab, round_id: int = 1) -> ReleaseRequest:
    """A round up to the question for its release, which is not sent yet."""
    lab.start(round_id)
    for i, upload in enumerate(lab.uploads(round_id)):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    (out,) = lab.server.finish_round()
    assert isinstance(out.message, ReleaseRequest)
    return out.message


def row_of(lab: Lab, seed: int = 5) -> np.ndarray:
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "other row", seed)
    return quantize_server_updates(lab.params, draw.standard_normal(lab.server_updates.shape))


def bump(words: np.ndarray, *index: int) -> np.ndarray:
    """One word plus one, in the field."""
    changed = words.copy()
    changed[index] = (int(changed[index]) + 1) % (2**31 - 1)
    return changed


def part(question: ScoreRequest, rows: list[int], clients: tuple[int, ...]) -> ScoreRequest:
    """The question about some of its rows."""
    return dataclasses.replace(
        question, clients=clients, products=question.products[rows], guards=question.guards[rows]
    )


def lie_score(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, products=bump(question.products, 0, 0, 0))


def lie_tagged_score(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, products=bump(question.products, 0, 1, 0))


def lie_sketch(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, products=bump(question.products, 3, 0, 77))


def lie_guard(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, guards=bump(question.guards, 2, 1))


def lie_guarded_counts(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, guards=bump(question.guards, 2, 0))


def lie_guard_shape(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, guards=question.guards[:-1].copy())


def lie_twice_asked(lab: Lab) -> Message:
    question = asked(lab)
    assert isinstance(lab.to_kdc(question)[0], ScoreAnswer)
    return dataclasses.replace(question, batch=9)


def lie_batch_used_again(lab: Lab) -> Message:
    """The same sketch for other uploads: a client could have seen it before it uploaded."""
    question = asked(lab)
    first, second = question.clients[:2], question.clients[2:]
    lab.to_kdc(part(question, [0, 1], first))
    return part(question, list(range(2, 8)), second)


def lie_client_named_twice(lab: Lab) -> Message:
    """Would fold a client's pads into P twice, and so weigh it twice in the sum."""
    question = asked(lab, (0,))
    return part(question, [0, 0], (0, 0))


def lie_outsider(lab: Lab) -> Message:
    return dataclasses.replace(asked(lab, (0,)), clients=(99,))


def lie_shape(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, products=question.products[:, :, :-1].copy())


def lie_beyond_the_field(lab: Lab) -> Message:
    question = asked(lab)
    return dataclasses.replace(question, products=np.full_like(question.products, 2**31 - 1))


def lie_round_never_opened(lab: Lab) -> Message:
    return dataclasses.replace(asked(lab), round_id=7)


def lie_replayed_round(lab: Lab) -> Message:
    play_lab(lab, round_id_of(1))
    lab.start(round_id_of(2))
    return OpenRound(round_id_of(1), tuple(range(8)))


def lie_other_clients_same_round(lab: Lab) -> Message:
    lab.start(1)
    return OpenRound(1, (0, 1, 2))


def lie_scores_after_release(lab: Lab) -> Message:
    lab.start(1)
    uploads = lab.uploads(1)
    for i in range(7):
        lab.to_server(uploads[i], client_address(i))
    lab.deliver(lab.server.flush())
    lab.to_server(uploads[7], client_address(7))
    (late,) = lab.server.flush()
    lab.server._asked.clear()
    lab.server.waiting.clear()
    lab.close()
    lab.deliver(lab.server.finish_round())
    assert lab.server.outcome is not None
    return late.message


def lie_second_set(lab: Lab) -> Message:
    question = released(lab)
    assert isinstance(lab.to_kdc(question)[0], Release)
    return dataclasses.replace(question, included=question.included[:-1])


def lie_never_accepted(lab: Lab) -> Message:
    lab.start(1)
    uploads = lab.uploads(1)
    for i in range(6):
        lab.to_server(uploads[i], client_address(i))
    lab.close()
    (out,) = lab.server.finish_round()
    assert isinstance(out.message, ReleaseRequest)
    return dataclasses.replace(out.message, included=tuple(range(8)))


def lie_named_twice_in_the_set(lab: Lab) -> Message:
    question = released(lab)
    return dataclasses.replace(question, included=(*question.included, 0))


def lie_opening(lab: Lab) -> Message:
    question = released(lab)
    return dataclasses.replace(question, opening=bump(question.opening, 0, 0))


def lie_moved_weight(lab: Lab) -> Message:
    """Weight moved from one slot to the other keeps the total; the second tag gives it away."""
    question = released(lab)
    opening, p = question.opening.copy().astype(np.int64), 2**31 - 1
    opening[0] = (opening[0] + np.array([1000, -1000])) % p
    return dataclasses.replace(question, opening=opening.astype(np.uint32))


def lie_release_of_another_round(lab: Lab) -> Message:
    return dataclasses.replace(released(lab), round_id=2)


def lie_changed_commitment(lab: Lab) -> Message:
    lab.start(1)
    return Commitment(1, row_of(lab))


def lie_long_commitment(lab: Lab) -> Message:
    return Commitment(1, 2 * row_of(lab))


def lie_commitment_with_counts(lab: Lab) -> Message:
    row = row_of(lab)
    row[lab.params.dim] = 1
    return Commitment(1, row)


def lie_commitment_of_wrong_size(lab: Lab) -> Message:
    return Commitment(1, row_of(lab)[:-1])


def lie_huge_round_id(lab: Lab) -> Message:
    return OpenRound(LARGEST_ROUND_ID + 1, (0,))


LIES: dict[str, Callable[[Lab], Message]] = {
    name.removeprefix("lie_"): call for name, call in list(globals().items()) if name.startswith("lie_")
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_every_lie_ends_the_service_also_after_a_restart(lie: str, tmp_path: Path) -> None:
    store = tmp_path / "kdc.sqlite"
    # Scores can also be lied about by the client; with none tolerated the first failing tag ends it.
    lab = make_lab(store=store, tolerated=0)
    (answer,) = lab.to_kdc(LIES[lie](lab))
    assert isinstance(answer, Refusal)
    assert "caught" in answer.reason
    assert lab.kdc.state is State.HALTED
    assert SERVER in lab.kdc.culprits
    for later in (lab.kdc, None):
        if later is None:
            lab.kdc._store.close()
            lab = make_lab(store=store, tolerated=0, enrol=False)
        for honest in (Commitment(1 << 40, row_of(lab)), OpenRound(1 << 40, (0, 1))):
            (refusal,) = lab.to_kdc(honest)
            assert isinstance(refusal, Refusal)
        assert lab.kdc.state is State.HALTED


def test_the_next_rounds_root_updates_do_not_change_the_open_round() -> None:
    """A server that could choose G after the uploads came could probe them, one upload at a time."""
    lab = make_lab()
    question = asked(lab)
    assert lab.to_kdc(Commitment(2, row_of(lab))) == []
    (answer,) = lab.to_kdc(question)
    assert isinstance(answer, ScoreAnswer)
    assert answer.refusals == ("",) * 8
    fresh = make_lab()
    (expected,) = fresh.to_kdc(asked(fresh))
    assert answer.same_as(expected)


@pytest.mark.parametrize("reopen", [False, True])
def test_the_same_question_gets_the_same_answer(reopen: bool, tmp_path: Path) -> None:
    """What an honest server asks again after a lost connection, or the key centre's crash."""
    store = tmp_path / "kdc.sqlite"
    lab = make_lab(store=store)
    replies: list[tuple[Message, list[Message]]] = []

    def send(message: Message) -> list[Message]:
        answers = lab.to_kdc(message)
        replies.append((message, answers))
        return answers

    for out in lab.server.start_round(1, range(8), lab.server_updates):
        for answer in send(out.message):
            lab.to_server(answer, KDC)
    for i, upload in enumerate(lab.uploads(1)):
        lab.to_server(upload, client_address(i))
    (question,) = lab.server.flush()
    lab.to_server(send(question.message)[0], KDC)
    lab.close()
    (question,) = lab.server.finish_round()
    send(question.message)
    assert [type(a).__name__ for _, answers in replies for a in answers] == ["RoundOpened", "ScoreAnswer", "Release"]
    if reopen:
        lab.kdc._store.close()
        lab.kdc = make_lab(store=store, enrol=False).kdc
    for message, answers in [*replies, *reversed(replies)]:
        again = lab.to_kdc(message)
        assert len(again) == len(answers)
        assert all(one.same_as(two) for one, two in zip(again, answers, strict=True))
    assert lab.kdc.state is State.SERVING


def test_late_copies_of_an_older_round_are_no_lie() -> None:
    lab = make_lab()
    play_lab(lab, round_id_of(1))
    old = [message for to, message in lab.log if to == KDC]
    lab.start(round_id_of(2))
    for message in old:
        if isinstance(message, OpenRound):  # asks to open a used round: no server does that by accident
            continue
        for answer in lab.to_kdc(message):
            assert isinstance(answer, ScoreAnswer | Refusal)
    assert lab.kdc.state is State.SERVING


@pytest.mark.parametrize(("tolerated", "liars", "halted"), [(2, 2, False), (2, 3, True), (0, 1, True), (0, 0, False)])
def test_failing_tags_are_charged_to_clients_up_to_the_tolerated_number(
    tolerated: int, liars: int, halted: bool
) -> None:
    """Nobody can say whether the client or the server changed an upload; beyond the number it must be the server."""
    lab = make_lab(tolerated=tolerated, quorum=4)
    question = asked(lab)
    products = question.products.copy()
    for i in range(liars):
        products[i] = bump(products[i], 0, 0)
    (answer,) = lab.to_kdc(dataclasses.replace(question, products=products))
    if halted:
        assert isinstance(answer, Refusal)
        assert f"{liars} clients failed" in answer.reason
        assert lab.kdc.state is State.HALTED
        return
    assert isinstance(answer, ScoreAnswer)
    assert [bool(reason) for reason in answer.refusals] == [i < liars for i in range(8)]
    assert lab.kdc.state is State.SERVING


def test_barred_clients_add_up_over_rounds_and_stay_barred() -> None:
    lab = make_lab(tolerated=1, quorum=4)
    question = asked(lab)
    (answer,) = lab.to_kdc(dataclasses.replace(question, products=bump(question.products, 0, 0, 0)))
    lab.to_server(answer, KDC)
    lab.close()
    lab.server.abandon_round()
    later = asked(lab, round_id=2)
    (answer,) = lab.to_kdc(part(later, [0, 2], (0, 2)))
    assert isinstance(answer, ScoreAnswer)
    assert answer.refusals == ("it is barred for this run", "")
    rest = dataclasses.replace(part(later, [3], (3,)), batch=1, products=bump(later.products[3:4], 0, 0, 5))
    (answer,) = lab.to_kdc(rest)
    assert isinstance(answer, Refusal)
    assert "2 clients failed their tags, 1 may be corrupt" in answer.reason


def test_tolerated_is_checked() -> None:
    for wrong in (-1, 4, 2.0, True):
        with pytest.raises(ConfigError, match="below the quorum"):
            make_lab(quorum=4, tolerated=wrong)


def test_a_training_round_is_released_once_and_a_second_attempt_is_no_lie() -> None:
    """Else "it failed, send again" after a release shows the difference of two sets: one client's update."""
    lab = make_lab()
    play_lab(lab, round_id_of(1, 0))
    assert lab.server.outcome is not None
    lab.start(round_id_of(1, 1))
    assert lab.server.refusal is not None
    assert "released already" in lab.server.refusal
    assert lab.kdc.state is State.SERVING
    lab.server.abandon_round()
    play_lab(lab, round_id_of(2))
    assert lab.server.outcome is not None


def test_an_attempt_that_was_not_released_may_be_repeated_and_can_no_longer_be_released() -> None:
    lab = make_lab()
    question = released(lab, round_id_of(1, 0))
    lab.server.abandon_round()
    play_lab(lab, round_id_of(1, 1))
    assert lab.server.outcome is not None
    (answer,) = lab.to_kdc(question)
    assert isinstance(answer, Refusal)
    assert lab.kdc.state is State.HALTED


def test_others_may_not_play_the_server() -> None:
    lab = make_lab()
    question = asked(lab)
    for message in (
        question,
        Commitment(2, row_of(lab)),
        OpenRound(2, (0,)),
        ReleaseRequest(1, (0,), question.products[0]),
    ):
        assert lab.to_kdc(message, client_address(3)) == []
        assert "only the server" in lab.kdc.culprits.pop(client_address(3))
    assert lab.kdc.state is State.SERVING


def test_opening_asks_for_a_commitment_and_enrolled_clients() -> None:
    lab = make_lab()
    for clients, why in (((0,), "no root updates"), ((0, 0), "twice"), ((0, 50), "not enrolled")):
        (answer,) = lab.to_kdc(OpenRound(1, clients))
        assert isinstance(answer, Refusal)
        assert why in answer.reason
        lab.to_kdc(Commitment(1, row_of(lab)))
    (answer,) = lab.to_kdc(OpenRound(1, (0, 1)))
    assert isinstance(answer, RoundOpened)
    assert lab.kdc.state is State.SERVING
