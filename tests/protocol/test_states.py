"""Every legal transition is in the table, every other pair raises and changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from ebscfl.errors import SequenceError, UsageError
from ebscfl.ids import SERVER, Role
from ebscfl.protocol.messages import MESSAGE_BY_CODE
from ebscfl.protocol.states import TRANSITIONS, State, Step, next_state, step

MESSAGES = {kind.__name__ for kind in MESSAGE_BY_CODE.values()}
STEPS = {local.value for local in Step}


@pytest.mark.parametrize(("protocol", "role"), list(TRANSITIONS))
def test_all_pairs(protocol: str, role: Role) -> None:
    table = TRANSITIONS[protocol, role]
    for state, event in product(State, MESSAGES | STEPS):
        if (state, event) in table:
            assert next_state(protocol, role, state, event) is table[state, event]
        elif event in MESSAGES:
            with pytest.raises(SequenceError) as caught:
                step(protocol, role, state, event, culprit=SERVER)
            assert caught.value.culprits == (SERVER,)
        else:
            with pytest.raises(UsageError):
                step(protocol, role, state, Step(event))


@pytest.mark.parametrize(("protocol", "role"), list(TRANSITIONS))
def test_tables_name_only_messages_and_steps_that_exist(protocol: str, role: Role) -> None:
    assert {event for _, event in TRANSITIONS[protocol, role]} <= MESSAGES | STEPS


@pytest.mark.parametrize(("protocol", "role"), list(TRANSITIONS))
def test_every_state_of_a_table_is_reachable(protocol: str, role: Role) -> None:
    table = TRANSITIONS[protocol, role]
    reached = {State.SERVING if role is Role.KDC else State.IDLE}
    for _ in State:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert {before for before, _ in table} <= reached
