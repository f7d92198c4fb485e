"""Servers of LightSecAgg and FastSecAgg: one decoding a round, however many clients dropped out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DecodeError, VerificationError
from ebscfl.ids import Address, client_address
from ebscfl.protocol.messages_secagg import (
    MaskedInput,
    PublicKeys,
    ShareBundle,
    ShareComplaint,
    ShareSum,
    ShareSumRequest,
)
from ebscfl.protocol.roles import Outgoing, Setup
from ebscfl.protocol.secagg.parameters import SumParameters
from ebscfl.protocol.secagg.roles import Handlers, SumServer
from ebscfl.protocol.states import Step
from ebscfl.secagg import ntt
from ebscfl.secagg.ramp import Code

Words = npt.NDArray[np.uint32]


class CodedServer(SumServer):
    """Collects sums of shares until enough are there to decode."""

    def __init__(self, setup: Setup, params: SumParameters, root: bytes, code: Code) -> None:
        super().__init__(setup, params, root)
        self._code = code
        self._sums: dict[int, Words] = {}
        self._silent: set[int] = set()  # clients that complained instead of answering

    def forget(self) -> None:
        self._sums, self._silent = {}, set()

    @property
    def minimum(self) -> int:
        """Shares a decoding takes."""
        return self._code.shape.needed

    def on_share_sum(self, sender: Address, message: ShareSum) -> list[Outgoing]:
        """One client's sum of shares."""
        client = self.once(sender, message.round_id, self._sums, "answer")
        try:
            size = self._code.shape.columns(self.params.width)
            self._sums[client] = ntt.check_residues(message.total, name=f"the answer of {sender}", size=size)
        except DecodeError as error:
            raise VerificationError(str(error), culprits=(sender,)) from error
        return []

    def on_complaint(self, sender: Address, message: ShareComplaint) -> list[Outgoing]:
        """A client cannot answer because a share reached it damaged: an erasure like any other, and its maker named."""
        client = self.once(sender, message.round_id, dict.fromkeys(self._silent), "complaint")
        self._silent.add(client)
        self.complain(sender, message.rejected)
        return []

    def decode(self) -> Words:
        """The sum of all that was shared."""
        self.require(set(self._sums), self.minimum, "answered")
        return self._code.decode(self._sums, self.params.width)


class MaskCodeServer(CodedServer):
    """LightSecAgg: decodes the sum of the survivors' masks and subtracts it."""

    protocol = "lightsecagg"

    def __init__(self, setup: Setup, params: SumParameters, root: bytes, code: Code) -> None:
        super().__init__(setup, params, root, code)
        self._total: Words = np.zeros(0, dtype=np.uint32)
        self._uploaded: set[int] = set()

    def forget(self) -> None:
        super().forget()
        self._total = np.zeros(self.params.width, dtype=np.uint32)
        self._uploaded = set()

    def on_masked_input(self, sender: Address, message: MaskedInput) -> list[Outgoing]:
        """One addition, and the input is gone."""
        client = self.once(sender, message.round_id, dict.fromkeys(self._uploaded), "upload")
        if client not in self.bundles:
            raise VerificationError(f"{sender} dealt no shares of its mask", culprits=(sender,))
        try:
            words = ntt.check_residues(message.masked, name=f"the upload of {sender}", size=self.params.width)
        except DecodeError as error:
            raise VerificationError(str(error), culprits=(sender,)) from error
        ntt.add_into(self._total, words)
        self._uploaded.add(client)
        return []

    def close_uploads(self) -> list[Outgoing]:
        """Ask the survivors for sums of the survivors' coded masks."""
        self.advance(Step.CLOSE_UPLOADS)
        self.require(self._uploaded, self.minimum, "uploaded")
        request = ShareSumRequest(self.round_id, tuple(sorted(self._uploaded)))
        return [Outgoing(client_address(i), request) for i in request.survivors]

    def finish_round(self) -> list[Outgoing]:
        mask = self.decode()
        self.advance(Step.FINISH_ROUND)
        ntt.subtract_from(self._total, mask)
        self.settle(self._total, sorted(self._uploaded))
        return []

    def handlers(self) -> Handlers:
        return {
            PublicKeys: self.on_public_keys,
            ShareBundle: self.on_bundle,
            MaskedInput: self.on_masked_input,
            ShareSum: self.on_share_sum,
            ShareComplaint: self.on_complaint,
        }


class InputCodeServer(CodedServer):
    """FastSecAgg: decodes the sum of the inputs; whoever dealt is in it, even if it leaves afterwards."""

    protocol = "fastsecagg"
    deals_shares = False

    def close_uploads(self) -> list[Outgoing]:
        """Relay everybody's shares; each client answers with their sum."""
        self.advance(Step.CLOSE_UPLOADS)
        return self.relay()

    def finish_round(self) -> list[Outgoing]:
        words = self.decode()
        self.advance(Step.FINISH_ROUND)
        self.settle(words, sorted(self.bundles))
        return []

    def handlers(self) -> Handlers:
        return {
            PublicKeys: self.on_public_keys,
            ShareBundle: self.on_bundle,
            ShareSum: self.on_share_sum,
            ShareComplaint: self.on_complaint,
        }
