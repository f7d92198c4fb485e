"""What a `sealed` run is configured with, and the planner that finds a field and fixed-point bits that cannot overflow.

Three integers are bounded by p/2: the sum of n contributions rho * x (weight_bits + update_bits bits each, noise
on top), one score <x, G> (update_bits + server_bits), and one coordinate of x. Within these the planner takes the
split that minimizes the expected error of the aggregate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ebscfl.errors import CapacityError, ConfigError
from ebscfl.field import FIELDS, M31, M61, Field, field_by_name

MIN_UPDATE_BITS = 14
MIN_WEIGHT_BITS = 6
SERVER_BITS_LIMIT = {"m31": 14, "m61": 20}
"""Bounds of the fused kernels: the server's row times a word, summed over a block, stays below 2^63."""

NORM_SQUARED = 1.25
"""An honest input: a unit update and one half as count."""

TYPICAL_WEIGHT = 0.5
"""Trust weight at which the planner weighs the error of rounding weights against that of rounding updates."""

MAX_SIGMA = 2**52
"""Noise up to this standard deviation is sampled exactly: sigma is exact in a double and 64 sigma fits 64 bits."""

NOISE_TAIL = 10.0
"""Headroom left for Gaussian noise, in standard deviations: beyond it a coordinate lies with probability 1e-23."""


@dataclass(frozen=True)
class SealedParameters:
    """Everything server, clients and key center must agree on before the first round."""

    field_name: str
    num_clients: int
    num_clusters: int
    dim: int
    update_bits: int
    weight_bits: int
    server_bits: int
    quorum: int
    min_slot_weight: float = 0.0
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_clients", "num_clusters", "dim", "quorum"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.quorum > self.num_clients:
            raise CapacityError(f"a quorum of {self.quorum} cannot be met by {self.num_clients} clients")
        if not (math.isfinite(self.min_slot_weight) and self.min_slot_weight >= 0):
            raise ConfigError(f"min_slot_weight must be zero or more, not {self.min_slot_weight}")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError(f"noise_multiplier must be zero or more, not {self.noise_multiplier}")
        if self.update_bits < MIN_UPDATE_BITS or self.weight_bits < MIN_WEIGHT_BITS:
            raise CapacityError(
                f"{self.update_bits} bits for updates and {self.weight_bits} for weights are too coarse: "
                f"at least {MIN_UPDATE_BITS} and {MIN_WEIGHT_BITS} are needed"
            )
        if not 8 <= self.server_bits <= SERVER_BITS_LIMIT[self.field.name]:
            raise CapacityError(f"server_bits must lie in 8..{SERVER_BITS_LIMIT[self.field.name]}")
        if self.noise_multiplier * self.sensitivity > MAX_SIGMA:
            raise CapacityError("the noise is too large for the exact sampler: use fewer bits or a larger epsilon")
        half = self.field.modulus // 2
        if self.largest_sum > half:
            raise CapacityError(
                f"{self.num_clients} clients with {self.update_bits} + {self.weight_bits} bits overflow the field "
                f"{self.field_name}: use fewer bits or clients, or field m61"
            )
        if 1 << (self.update_bits + self.server_bits + 1) > half + 1:
            raise CapacityError(f"scores of {self.update_bits} + {self.server_bits} bits overflow {self.field_name}")

    @property
    def field(self) -> Field:
        """The field itself."""
        return field_by_name(self.field_name)

    @property
    def slot_size(self) -> int:
        """Words in one slot: the update and its count."""
        return self.dim + 1

    @property
    def width(self) -> int:
        """Words in an input: m slots."""
        return self.num_clusters * self.slot_size

    @property
    def one_half(self) -> int:
        """The count coordinate."""
        return 1 << (self.update_bits - 1)

    @property
    def largest_sum(self) -> int:
        """The largest honest value of one coordinate of the sum, noise included."""
        return _room(self.num_clients, self.noise_multiplier) << (self.update_bits + self.weight_bits)

    @property
    def sensitivity(self) -> float:
        """L2 bound on what one honest client adds to the integer sum: weight <= 1, ||x||^2 <= 1.25, plus rounding.

        Stochastic rounding moves each of the ``dim`` coordinates by less than one unit.
        """
        update = 2.0**self.update_bits + math.sqrt(self.dim)
        return 2.0**self.weight_bits * math.hypot(update, self.one_half)

    @property
    def upload_bytes(self) -> int:
        """c, t and the guard words; without the message's header."""
        return self.field.word_size * (2 * self.width + self.num_clusters)

    @property
    def expected_error(self) -> float:
        """Expected relative error of an aggregate of unrelated updates (related ones average it down further).

        Stochastic rounding has variance f(1 - f) with mean 1/6 a coordinate; a weight rounded to weight_bits has
        standard deviation 2^-weight_bits / sqrt(12).
        """
        return _expected_error(self.dim, self.update_bits, self.weight_bits)

    def describe(self) -> str:
        """One line for logs and the command line."""
        return (
            f"field {self.field_name}, {self.update_bits} bits for updates, {self.weight_bits} for weights, "
            f"{self.server_bits} for server updates; expected error {100 * self.expected_error:.2g} %, "
            f"upload {self.upload_bytes} bytes"
        )


def _expected_error(dim: int, update_bits: int, weight_bits: int) -> float:
    update = math.sqrt(dim / 6) * 2.0**-update_bits
    weight = 2.0**-weight_bits / math.sqrt(12) / TYPICAL_WEIGHT
    return math.hypot(update, weight)


def _room(num_clients: int, noise_multiplier: float) -> int:
    """Contributions of size one that a coordinate of the sum must hold: the clients' and the noise's tail."""
    return num_clients + math.ceil(NOISE_TAIL * noise_multiplier * math.sqrt(NORM_SQUARED))


def _best_split(field: Field, num_clients: int, dim: int, noise_multiplier: float) -> tuple[int, int, int] | None:
    """(update_bits, weight_bits, server_bits) with the smallest expected error, or None if nothing fits."""
    # The largest number of bits b with room * 2^b <= p/2.
    budget = (field.modulus // 2 // _room(num_clients, noise_multiplier)).bit_length() - 1
    if noise_multiplier > 0:  # sensitivity is below 1.5 * 2^(update_bits + weight_bits) wherever rounding is fine
        budget = min(budget, math.floor(math.log2(MAX_SIGMA / (1.5 * noise_multiplier))))
    server_limit = SERVER_BITS_LIMIT[field.name]
    best: tuple[float, int, int, int] | None = None
    for update_bits in range(MIN_UPDATE_BITS, budget - MIN_WEIGHT_BITS + 1):
        server_bits = min(server_limit, field.bits - 2 - update_bits)
        # Enough for a coordinate of typical size 1 / sqrt(dim) to be two units, or rounding would erase G.
        if server_bits < max(8, math.ceil(math.log2(dim) / 2) + 1):
            break
        weight_bits = min(budget - update_bits, 30)  # beyond the precision of the score nothing is gained
        error = _expected_error(dim, update_bits, weight_bits)
        if best is None or error < best[0]:
            best = (error, update_bits, weight_bits, server_bits)
    return None if best is None else best[1:]


def plan(
    num_clients: int,
    dim: int,
    num_clusters: int,
    field: str | None = None,
    *,
    quorum: int | None = None,
    min_slot_weight: float = 0.0,
    noise_multiplier: float = 0.0,
    tolerance: float = 0.02,
) -> SealedParameters:
    """Parameters for a run: the smaller field if its expected error is within ``tolerance``, else the larger.

    quorum: uploads without which nothing is released, by default more than half of the clients.
    Raises `CapacityError` when no field holds the run, or the one asked for does not.
    """
    for name, value in (("num_clients", num_clients), ("dim", dim), ("num_clusters", num_clusters)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    candidates = (M31, M61) if field is None else (field_by_name(field),)
    for candidate in candidates:
        split = _best_split(candidate, num_clients, dim, noise_multiplier)
        if split is None or (field is None and candidate is M31 and _expected_error(dim, *split[:2]) > tolerance):
            continue
        update_bits, weight_bits, server_bits = split
        return SealedParameters(
            candidate.name,
            num_clients,
            num_clusters,
            dim,
            update_bits,
            weight_bits,
            server_bits,
            quorum if quorum is not None else num_clients // 2 + 1,
            min_slot_weight,
            noise_multiplier,
        )
    tried = ", ".join(FIELDS) if field is None else field
    raise CapacityError(
        f"{num_clients} clients do not fit ({tried}): a sum needs {MIN_UPDATE_BITS} + {MIN_WEIGHT_BITS} fractional "
        f"bits a client below p/2; take fewer clients a round or field m61"
    )
