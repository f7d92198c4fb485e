"""What a run tells whoever watches it; the simulator itself never prints."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives a run's milestones."""

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        """A cell begins (or goes on after ``first_round`` rounds)."""

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        """One round is over; ``accuracy`` in percent where it was evaluated."""

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        """A cell is over with this final accuracy."""


class Quiet:
    """Tells nobody."""

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        """Ignore it."""

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        """Ignore it."""

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        """Ignore it."""
