"""Settings of the server's side: clusters, root updates, and what each rule needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from ebscfl.errors import ConfigError
from ebscfl.rules.score_history import HistorySettings

CLUSTER_INITS = ("root", "independent", "covering")
NORMALIZATIONS = ("cluster", "global")
ROOT_UPDATES = ("each-round", "fixed")
ROOT_SCALES = ("paper", "mean", "part")
AVERAGINGS = ("model", "gradient")
UNSUPPORTED = ("keep", "distrust")
EMPTY_CLUSTERS = ("keep", "follow")
HISTORY_SCOPES = ("all", "cluster")
SHARES = ("none", "body")
ROOT_DIRECTIONS = ("cluster", "mixed")


@dataclass(frozen=True)
class ServerSettings:
    """What the server of every method is set up with."""

    clusters: int = 4
    """m: cluster models of the clustered methods (IFCA, RFCA); the others have one."""
    cluster_init: str = "root"
    """root: one random model, moved once per cluster by a group of similar root parts; independent: m random models,
    as IFCA's MNIST code; covering: redraw those until each is the best of some root part, as IFCA's CIFAR code does
    with clients. All clustered methods of a run start from the same models."""
    init_tries: int = 200
    """Redraws of "covering" before the best draw so far is taken."""
    eta: float = 1.0
    """Global learning rate of every method (theta += eta * aggregate)."""
    normalize: str = "cluster"
    """RFCA: divide by the trust of the own cluster (Eq. 1) or of all clusters ("global", the pseudocode)."""
    averaging: str = "model"
    """IFCA: "model" = mean over the cluster's clients; "gradient" = divided by all clients (its Option I)."""
    root_updates: str = "each-round"
    """RFCA: recompute the root updates every round, or "fixed": once at the start, as the paper prints."""
    root_scale: str = "paper"
    """RFCA: root update = (m / parts) * sum over a cluster's parts ("paper"), their "mean", or that mean made as long
    as the update of one "part" is on average. Directions, and so scores, are the same; clusters move by its length."""
    root_direction: str = "cluster"
    """RFCA: a cluster's root update points where its own parts' do ("cluster"), or halfway between that and the mean of
    all clusters' ("mixed"), which few parts cannot turn; where a body is shared, it then looks at the body only. Its
    length stays."""
    root_steps: int | None = None
    """Local steps of a root update; none: those of [local]."""
    root_lr: float | None = None
    """Learning rate of a root update; none: that of [local]."""
    root_batch: int | None = None
    """Batch size of a root update; none: that of [local]."""
    root_momentum: float = 0.0
    """RFCA: root update = this much of the last one + the rest of the fresh one: less noise, more delay."""
    unsupported: str = "keep"
    """RFCA, a cluster that no clean root part chooses: it may "keep" its last root update, or everybody in it is
    "distrust"ed. Attackers on poisoned data tend to settle in a cluster of their own."""
    empty_cluster: str = "keep"
    """Clustered methods, a cluster that moved by nobody's update: it may "keep" its model, or "follow": take that of
    the cluster with most members. Data that support fewer clusters than m then end with copies instead of leftovers."""
    choice_steps: int | None = None
    """Clustered methods: a client (and a root part) chooses its cluster on this many batches of the round; none: on
    all it will train on."""
    share: str = "none"
    """Clustered methods: "body" averages all layers but the last over the clusters, by their weight, so that features
    are learned from everybody and a cluster only owns its last layer (IFCA's weight sharing); "none" shares nothing."""
    hysteresis: float = 0.0
    """Clustered methods: a client leaves its last cluster only for a loss lower by more than this share."""
    history_decay: float = 0.9
    """RFCA-H: weight of the past in a client's average score; 0.9 remembers about ten rounds."""
    history_recovery: float = 0.1
    """RFCA-H: how fast a standing climbs back to the average; 1 forgets bad phases as fast as good ones."""
    history_warmup: int = 3
    """RFCA-H: rounds a client counts as a newcomer."""
    history_scope: str = "all"
    """RFCA-H: compare "all" clients of a round with one another, or keep one history per "cluster" (direct only: the
    key center of `sealed` never learns who is in which)."""
    history_weight: str = "score"
    """RFCA-H: a trusted client weighs as much as this round's "score", as its "record" over all rounds allows, or all
    with a positive score weigh "equal"."""
    faulty: int | None = None
    """Attackers that Krum, Multi-Krum and the trimmed mean are set up for; none: attack.fraction * clients."""
    select: int | None = None
    """Updates Multi-Krum averages; none: clients - faulty."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        choices = {
            "cluster_init": CLUSTER_INITS,
            "normalize": NORMALIZATIONS,
            "root_updates": ROOT_UPDATES,
            "root_scale": ROOT_SCALES,
            "averaging": AVERAGINGS,
            "unsupported": UNSUPPORTED,
            "empty_cluster": EMPTY_CLUSTERS,
            "history_scope": HISTORY_SCOPES,
            "share": SHARES,
            "root_direction": ROOT_DIRECTIONS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in ("clusters", "init_tries", "root_steps", "root_batch", "choice_steps", "select"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.faulty is not None and self.faulty < 0:
            raise ConfigError(f"faulty must not be negative, not {self.faulty}")
        for name in ("root_momentum", "hysteresis"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in 0..1 (1 excluded), not {getattr(self, name)}")
        for name in ("eta", "root_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be a positive number, not {value}")
        if self.share == "body" and self.normalize == "global":
            raise ConfigError("share: a body is shared by the weights of clusters, so normalize must be cluster")
        if self.share == "body" and self.averaging == "gradient":
            raise ConfigError("share: a body is shared by the weights of clusters, so averaging must be model")
        try:
            _ = self.history
        except ConfigError as error:
            raise ConfigError(f"history_{error}") from None

    @property
    def history(self) -> HistorySettings:
        """The settings of the score history; what is not named here keeps its measured default."""
        return HistorySettings(
            decay=self.history_decay,
            recovery=self.history_recovery,
            warmup=self.history_warmup,
            weight=self.history_weight,
        )
