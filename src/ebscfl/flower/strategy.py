"""A Flower `Strategy` that plays the protocol's rounds. Not FedAvg: one malformed reply must not end the run.

``start`` replaces Flower's loop: one exchange a round, polled by `FlowerExchange`, with deadlines, a quorum and a
checkpoint after every step. The four abstract methods are there for code that drives a strategy by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.federation.coordinator import Coordinator
from ebscfl.flower.exchange import FlowerExchange
from ebscfl.flower.records import NONCE_SIZE, Question, pack_question

LOG = logging.getLogger("ebscfl.flower")
_Strategy: Any = Strategy


class ProtocolStrategy(_Strategy):  # type: ignore[misc]  # Flower may be installed or not where types are checked
    """Rounds of a coordinator through Flower."""

    def __init__(self, coordinator: Coordinator, *, gather_s: float = 120.0, clients: int | None = None) -> None:
        self.coordinator = coordinator
        self.gather_s = gather_s
        self.enough = clients
        self.exchange: FlowerExchange | None = None

    def start(
        self,
        grid: Any,
        initial_arrays: Any = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Train until ``num_rounds`` steps are done in all; models come from the checkpoint, not from the caller."""
        result = Result()
        self.exchange = exchange = FlowerExchange(grid, self.coordinator.directory)
        LOG.info("clients: %s", exchange.gather(wait_s=self.gather_s, enough=self.enough))

        def after(step: int) -> None:
            LOG.info("step %d of %d is done", step, num_rounds)
            if evaluate_fn is not None and (metrics := evaluate_fn(step, self.arrays())) is not None:
                result.evaluate_metrics_serverapp[step] = metrics
            exchange.gather(wait_s=0.5)  # clients that came later

        self.coordinator.run(exchange, num_rounds, after=after)
        for who, why in exchange.dropped.items():
            LOG.warning("dropped: %s: %s", who, why)
        result.arrays = self.arrays()
        return result

    def arrays(self) -> Any:
        """The models of the last whole step."""
        return ArrayRecord({"models": Array(self.coordinator.checkpoint.state.models.cpu().numpy())})

    def summary(self) -> None:
        """One line about the protocol."""
        setup = self.coordinator.agent.role.setup
        LOG.info("protocol %s, %d clients, %d clusters", setup.protocol, setup.num_clients, setup.num_clusters)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """One question a node with round, nonce and models."""
        return self._questions(MessageType.TRAIN, server_round, arrays, grid)

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """The same question, answered with scores by clients whose owners share them."""
        return self._questions(MessageType.EVALUATE, server_round, arrays, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Uploads mean nothing one by one; sums come from the round's protocol in `start`."""
        raise UsageError("uploads are summed by the protocol: call start()")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Mean loss and accuracy per cluster model over the clients that answered well; the others are left out."""
        clusters = self.coordinator.agent.role.setup.num_clusters
        good = [scores for reply in replies if (scores := _scores(reply, clusters)) is not None]
        if not good:
            return None
        means = {name: np.mean([scores[name] for scores in good], axis=0).tolist() for name in ("loss", "accuracy")}
        return MetricRecord({**means, "clients": len(good)})

    def _questions(self, kind: str, server_round: int, arrays: Any, grid: Any) -> list[Any]:
        models = arrays["models"].numpy().astype(np.float32)
        return [
            Message(
                pack_question(Question(server_round, rng.os_random(NONCE_SIZE), models)),
                dst_node_id=node, message_type=kind, group_id=str(server_round),
            )
            for node in grid.get_node_ids()
        ]  # fmt: skip


def _scores(reply: Any, clusters: int) -> dict[str, list[float]] | None:
    """A client's scores if they are whole: m finite numbers each, accuracies within 0..100."""
    if reply.has_error() or set(reply.content) != {"scores"} or not isinstance(reply.content["scores"], MetricRecord):
        return None
    table: dict[str, Any] = dict(reply.content["scores"])
    if set(table) != {"loss", "accuracy"} or any(not isinstance(v, list) or len(v) != clusters for v in table.values()):
        return None
    if not np.isfinite([*table["loss"], *table["accuracy"]]).all():
        return None
    return table if all(0 <= x <= 100 for x in table["accuracy"]) else None
