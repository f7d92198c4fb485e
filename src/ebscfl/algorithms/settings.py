"""Settings of the server's side: clusters, root updates, and what each rule needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from ebscfl.errors import ConfigError

CLUSTER_INITS = ("root", "independent", "covering")
NORMALIZATIONS = ("cluster", "global")
ROOT_UPDATES = ("each-round", "fixed")
ROOT_SCALES = ("paper", "mean")
AVERAGINGS = ("model", "gradient")


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
    """RFCA: root update = (m / parts) * sum over a cluster's parts ("paper"), or their "mean"."""
    root_steps: int | None = None
    """Local steps of a root update; none: those of [local]."""
    root_lr: float | None = None
    """Learning rate of a root update; none: that of [local]."""
    root_batch: int | None = None
    """Batch size of a root update; none: that of [local]."""
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
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in ("clusters", "init_tries", "root_steps", "root_batch", "select"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.faulty is not None and self.faulty < 0:
            raise ConfigError(f"faulty must not be negative, not {self.faulty}")
        for name in ("eta", "root_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be a positive number, not {value}")
