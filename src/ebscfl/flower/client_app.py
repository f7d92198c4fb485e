"""The ClientApp: train the model that fits best, send it encoded; evaluate only where the client's owner agrees."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ebscfl.config import parse_config
from ebscfl.errors import EbscflError
from ebscfl.federation.training import Training, load_config
from ebscfl.flower.mods import REFUSED, directory_of, encoding_mod, open_agent
from ebscfl.flower.records import pack_answer, read_handed, read_question
from ebscfl.kdc_service.deployment import party_of

SHARE_EVALUATION = "share-evaluation"
"""Node configuration: true lets EVALUATE answer. Losses per cluster model tell the server which cluster a client is in,
which `sealed` hides, so the default is false."""


def _training(context: Context) -> tuple[Training, int]:
    directory = directory_of(context)
    settings = json.loads((directory / "training.json").read_text()) if (directory / "training.json").exists() else {}
    return _made(load_config(directory).to_toml(), str(settings.get("attack", "none"))), party_of(directory).client


@functools.lru_cache(maxsize=1)
def _made(config: str, attack: str) -> Training:
    """Kept between messages: in Flower's simulation one process plays many clients."""
    return Training(parse_config(config), attack=attack)


def train(message: Message, context: Context) -> Message:
    """The plain update and the chosen cluster, for the mods around this function."""
    question = read_handed(message)
    training, client = _training(context)
    update, cluster = training.update(client, training.check_models(question.models).numpy(), question.round_id)
    content = RecordDict(
        {"update": ArrayRecord({"update": Array(update)}), "choice": ConfigRecord({"cluster": cluster})}
    )
    return Message(content, reply_to=message)


def query(message: Message, context: Context) -> Message:
    """Say who is here; enrols with the key centre where the protocol needs it."""
    try:
        agent = open_agent(context)
        return Message(pack_answer(agent.directory, context.node_id, read_question(message)), reply_to=message)
    except EbscflError as error:
        return Message(Error(REFUSED, f"{type(error).__name__}: {error}"[:300]), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """Loss and accuracy of every cluster model on this client, if its owner shares them."""
    try:
        if context.node_config.get(SHARE_EVALUATION) is not True:
            return Message(Error(REFUSED, f"this client does not set {SHARE_EVALUATION}=true"), reply_to=message)
        question = read_question(message)
        training, client = _training(context)
        scores = training.scores(client, np.asarray(training.check_models(question.models)))
        return Message(RecordDict({"scores": MetricRecord(dict(scores))}), reply_to=message)
    except EbscflError as error:
        return Message(Error(REFUSED, f"{type(error).__name__}: {error}"[:300]), reply_to=message)


def make_app(*mods: Any) -> ClientApp:
    """The ClientApp with mods of the owner's choice (clipping, local differential privacy) inside the encoding."""
    made = ClientApp(mods=[encoding_mod, *mods])
    made.train()(train)
    made.query()(query)
    made.evaluate()(evaluate)
    return made


app = make_app()
