"""The paper's secure aggregation (EBS-CFL, AAAI-25), exact and fast: the mathematics, without roles or messages.

Faithful, and **not private**: an honest-but-curious server recovers every client's update and cluster from its own
view (docs/explanation-paper-protocol.md, errata 7, 8 and 10). The protocol that hides them is `ebscfl.sealed`.

    parameters   sizes, group slots            vomca, srfc, skt   the mechanisms, each alone
    keys         who holds what                naive, compressed  the two schemes built from them
    dealing      what the key center computes  scheme             what clients and server compute
"""

from ebscfl.paper.dealing import deal, re_deal_alpha, refresh
from ebscfl.paper.keys import (
    ClientKey,
    ClientRoundKey,
    DealerSecret,
    Dealt,
    DenseScoringKey,
    FactoredScoringKey,
    RoundKeys,
    ServerKey,
    ServerRoundKey,
    TransformKeys,
    own,
)
from ebscfl.paper.parameters import PaperParameters
from ebscfl.paper.scheme import ReluSum, aggregate, combine, decoder, encode, relu_sum, score, verify

__all__ = [
    "ClientKey",
    "ClientRoundKey",
    "DealerSecret",
    "Dealt",
    "DenseScoringKey",
    "FactoredScoringKey",
    "PaperParameters",
    "ReluSum",
    "RoundKeys",
    "ServerKey",
    "ServerRoundKey",
    "TransformKeys",
    "aggregate",
    "combine",
    "deal",
    "decoder",
    "encode",
    "own",
    "re_deal_alpha",
    "refresh",
    "relu_sum",
    "score",
    "verify",
]
