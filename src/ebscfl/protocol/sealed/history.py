"""The key centre's memory of scores (RFCA-H): the trust weight each client is given in a round.

The rule is `ebscfl.rules.score_history`; this file keeps its state in the store, before any answer leaves. What is
kept is the history before the newest training round and that round's scores: a round that is asked in several batches
is judged each time from all its scores so far, so after the last batch the history does not depend on how a server cut
the batches, nor on how often it asked. (Answers already given stay: only the first batch is judged without the rest.)

Robustness, unlike privacy, rests on an honest server: whoever chooses the root updates decides what a score means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebscfl.errors import CheckpointError, ConfigError
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.sealed.store import KdcStore
from ebscfl.rules.score_history import (
    History,
    HistorySettings,
    Judgment,
    advance,
    history_from_json,
    history_to_json,
)

NOTE = "score-history"


class ScoreMemory:
    """One run's score history, in ``store``; ``start`` is used only where the store holds none yet."""

    def __init__(self, store: KdcStore, settings: HistorySettings, start: History) -> None:
        self._store = store
        self.settings = settings
        self._start = start

    def __repr__(self) -> str:
        return "ScoreMemory(<redacted>)"

    def weights(self, training_round: int, clients: Sequence[int], scores: Sequence[float]) -> list[float]:
        """The weight 0..1 of each client; remembers the scores first."""
        if not clients:
            return []
        number, before, known = self._load()
        if number != training_round:
            before, known = self._after(before, known), {}
        # An upload that spreads over slots may score above one; it is no better than an exact match.
        known |= {client: float(np.clip(score, -1.0, 1.0)) for client, score in zip(clients, scores, strict=True)}
        note = {
            "round": training_round,
            "before": history_to_json(before),
            "scores": [[client, known[client]] for client in sorted(known)],
        }
        self._store.put_note(NOTE, json.dumps(note, allow_nan=False).encode())
        verdict = self._judge(before, known)[1]
        weight = dict(zip(sorted(known), verdict.weights.tolist(), strict=True))
        return [float(weight[client]) for client in clients]

    def history(self) -> History:
        """The history after the newest round."""
        _, before, known = self._load()
        return self._after(before, known)

    def _after(self, before: History, known: dict[int, float]) -> History:
        return self._judge(before, known)[0] if known else before

    def _judge(self, before: History, known: dict[int, float]) -> tuple[History, Judgment]:
        ids = sorted(known)
        return advance(before, ids, np.array([known[client] for client in ids]), self.settings)

    def _load(self) -> tuple[int, History, dict[int, float]]:
        note = self._store.note(NOTE)
        if note is None:
            return -1, self._start, {}
        try:
            document: dict[str, Any] = json.loads(note)
            known = {int(client): float(score) for client, score in document["scores"]}
            return int(document["round"]), history_from_json(document["before"]), known
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the key centre's score history is corrupt ({type(error).__name__})") from None


def score_memory(setup: Setup, store: KdcStore) -> ScoreMemory | None:
    """What the options ``history``, ``history_settings`` and ``history_start`` ask for."""
    wanted = setup.option("history", False)
    if not isinstance(wanted, bool):
        raise ConfigError(f"history must be true or false, not {wanted!r}")
    if not wanted:
        return None
    settings, start = setup.option("history_settings", None), setup.option("history_start", None)
    if isinstance(settings, Mapping):  # from a file
        settings = HistorySettings(**settings)
    return ScoreMemory(store, settings or HistorySettings(), History() if start is None else history_from_json(start))
