"""The client's outermost mod: nothing leaves the process before it is encoded.

Put it first in ``ClientApp(mods=[encoding_mod, ...])``: mods that come after it (clipping, local differential privacy)
run inside and see the plain update; this one takes the inner reply ``{"update": {update}, "choice": {cluster}}``,
encodes it under the round's keys and sends only that. A reply of any other form is an error without contents. Inside,
a message looks as Flower's own mods want it (`records.hand_in`), so its `LocalDpMod` works as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MessageType

from ebscfl.errors import ConfigError, EbscflError, UsageError
from ebscfl.federation.client_agent import ClientAgent
from ebscfl.flower.records import hand_in, pack_answer, read_question
from ebscfl.kdc_service.deployment import party_of
from ebscfl.protocol.registry import protocol_info

CLIENTS_VARIABLE = "EBSCFL_CLIENTS_DIR"
"""For Flower's simulation runtime, which starts nodes without settings of their own: node i is client i of here."""

REFUSED = 451
"""Code of an error reply of ours; its reason never holds data."""


def directory_of(context: Context) -> Path:
    """The client's directory, from its own node configuration or environment (never from the server)."""
    name, partition = context.node_config.get("directory"), context.node_config.get("partition-id")
    if isinstance(name, str) and name:
        return Path(name)
    if CLIENTS_VARIABLE in os.environ and isinstance(partition, int):
        return Path(os.environ[CLIENTS_VARIABLE]) / str(partition)
    raise ConfigError("start the SuperNode with --node-config 'directory=\"...\"': the client's directory")


def open_agent(context: Context) -> ClientAgent:
    """The client's role, enrolled."""
    directory = directory_of(context)
    agent = ClientAgent(directory, party_of(directory).client)
    agent.enrol()
    return agent


def encoding_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer TRAIN with an encoded upload; the same round always with the same bytes."""
    try:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        question = read_question(message)
        agent = open_agent(context)
        upload = agent.sent(question.round_id)
        if upload is None:
            if question.models is None:
                raise UsageError("the question brings no models")
            hand_in(message, question)
            update, cluster = _plain(call_next(message, context))
            upload = agent.upload(question.round_id, update, cluster)
        return Message(pack_answer(agent.directory, context.node_id, question, upload), reply_to=message)
    except EbscflError as error:
        return Message(Error(REFUSED, f"{type(error).__name__}: {error}"[:300]), reply_to=message)


def hides_updates(agent: ClientAgent) -> bool:
    """Whether the run's protocol keeps single updates and clusters from the server."""
    return protocol_info(agent.role.setup.protocol).hides_updates


def _plain(reply: Message) -> tuple[Any, int]:
    """(update, cluster) of the inner app."""
    if reply.has_error():
        raise UsageError("the training function failed; its log says why")
    try:
        content: Any = reply.content
        update, cluster = content["update"]["update"].numpy(), content["choice"]["cluster"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError("the training function must reply with records 'update' and 'choice'") from error
    if update.ndim != 1 or update.dtype.kind != "f" or not np.isfinite(update).all() or not isinstance(cluster, int):
        raise UsageError("the update must be a finite vector of floats and the cluster an integer")
    return update, cluster
