"""Who learns what, as data: the table of the audit page. docs/security-model.md gives the reasons for `sealed`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Leak:
    """One line: a party, and what it learns under each protocol. ``attack`` names the finding that measures it."""

    party: str
    what: str
    plain: str
    paper: str
    sealed: str
    attack: str


LEAKS = (
    Leak("server", "a client's update", "all of it", "all of it", "nothing", "spectral, uploads"),
    Leak("server", "a client's cluster", "yes", "yes", "no", "spectral, clusters"),
    Leak("server", "a client's trust score", "yes", "yes, with its sign", "no", "spectral, weights"),
    Leak("server", "which uploads fail a check", "yes", "yes", "yes, not those that trust rejects", "weights"),
    Leak("server", "sum and weight of each cluster", "yes", "yes", "yes: it is the result", "collusion"),
    Leak(
        "server + k clients", "sum over the other clients", "all of it", "all of it",
        "yes: inherent; one client only if k exceeds the quorum's assumption", "collusion",
    ),
    Leak(
        "server, two rounds", "a client that repeats its update", "all of it", "all of it",
        "yes without noise: inherent in exact sums; no with differential privacy", "differencing",
    ),
    Leak("key center", "a client's update", "there is none", "nothing", "256 numbers of a random sketch", "kdc-view"),
    Leak("key center", "a client's trust score", "there is none", "nothing", "yes", "kdc-view"),
    Leak("key center", "a client's cluster", "there is none", "nothing", "yes, from the sketch", "kdc-view"),
    Leak("key center", "the server's root updates", "there is none", "yes", "yes", "kdc-view"),
    Leak(
        "server + key center", "everything", "all of it", "all of it", "all of it: assumed not to collude", "",
    ),
    Leak("another client", "anything", "nothing", "nothing", "nothing", ""),
)  # fmt: skip

COLUMNS = ("party", "what", "plain", "paper", "sealed", "attack")
TITLES = ("who", "learns about", "plain", "paper", "sealed", "measured by")


def rows() -> list[tuple[str, ...]]:
    """The table's cells."""
    return [tuple(getattr(leak, column) or "-" for column in COLUMNS) for leak in LEAKS]


def markdown() -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows())]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
