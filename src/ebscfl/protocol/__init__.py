"""The protocols as roles and messages. Start reading at `ebscfl.protocol.run`."""

from __future__ import annotations

from ebscfl.protocol.run import RoundResult, Session, play_round

__all__ = ["RoundResult", "Session", "play_round"]
