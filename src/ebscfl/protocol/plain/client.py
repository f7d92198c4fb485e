"""The plain client: it sends what it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebscfl.ids import Address
from ebscfl.protocol.messages import Message, PlainUpload, ResendRequest
from ebscfl.protocol.roles import ClientRole, Floats, Outgoing


class PlainClient(ClientRole):
    """Uploads its cluster and its float32 update."""

    protocol = "plain"

    def build_upload(self, round_id: int, update: Floats, cluster: int) -> Message:
        return PlainUpload(round_id, int(cluster), np.ascontiguousarray(update, dtype=np.float32))

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {ResendRequest: self.on_resend_request}
