"""Mathematics of the comparators: secure sums that hide updates and know neither trust nor clusters.

`masking` and `shamir` carry SecAgg (Bonawitz et al., CCS 2017), SecAgg+ (Bell et al., CCS 2020) and CCESA (Choi et al.,
2020), which differ only in `graphs`; `ramp` (or its slow relative `lagrange`) carries FastSecAgg (Kadhe et al., 2020)
and LightSecAgg (So et al., MLSys 2022). `channel` is the encrypted path between two clients through the server.
"""

from ebscfl.secagg.fixed_point import FixedPoint
from ebscfl.secagg.graphs import Graph, complete, erdos_renyi, harary
from ebscfl.secagg.lagrange import LagrangeCode
from ebscfl.secagg.ntt import NTT_PRIME
from ebscfl.secagg.ramp import Code, CodeShape, RampCode

__all__ = [
    "NTT_PRIME",
    "Code",
    "CodeShape",
    "FixedPoint",
    "Graph",
    "LagrangeCode",
    "RampCode",
    "complete",
    "erdos_renyi",
    "harary",
]
