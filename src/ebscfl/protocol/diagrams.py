"""The state tables as Markdown with Mermaid diagrams: docs/ref-protocol-states.md is made from `TRANSITIONS`.

Run ``python -m ebscfl.protocol.diagrams > docs/ref-protocol-states.md``; a test compares the file with the tables.
"""

from __future__ import annotations

from ebscfl.ids import Role
from ebscfl.protocol.messages import MESSAGE_BY_CODE
from ebscfl.protocol.states import TRANSITIONS, State, Table

_HEAD = """# States and transitions of every role

Made from `src/ebscfl/protocol/states.py` by `python -m ebscfl.protocol.diagrams`; do not edit by hand. Events in
*italics* are local steps (method calls), the others are messages. A message that has no arrow from the present state is
refused and its sender is named; a local step that has none is a `UsageError` of the caller.
"""


def page() -> str:
    """The whole document."""
    parts = [_HEAD]
    for (protocol, role), table in TRANSITIONS.items():
        parts.append(f"\n## {protocol}: {role.value}\n")
        parts.append(_diagram(table, role) if table else "It takes no part.\n")
    return "\n".join(parts)


def _diagram(table: Table, role: Role) -> str:
    messages = {kind.__name__ for kind in MESSAGE_BY_CODE.values()}
    start = State.SERVING if role is Role.KDC else State.IDLE
    arrows: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in table.items():
        arrows.setdefault((before, after), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [f"    {a.name} --> {b.name}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += ["```", "", "| state | event | next |", "|---|---|---|"]
    for (before, event), after in table.items():
        lines.append(f"| {before.value} | {event if event in messages else f'*{event}*'} | {after.value} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
