"""Fixed point: exact sums, bounds that cannot wrap, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import CapacityError, ConfigError, UsageError
from ebscfl.secagg import NTT_PRIME, FixedPoint

MODULI = [1 << 32, NTT_PRIME]


@pytest.mark.parametrize("modulus", MODULI)
@given(num=st.integers(1, 500), data=st.data())
def test_sums_of_extremes_never_wrap(modulus: int, num: int, data: st.DataObject) -> None:
    fixed = FixedPoint(modulus, num)
    rows = [
        fixed.encode(np.array(data.draw(st.lists(st.floats(-2, 2), min_size=3, max_size=3))))
        for _ in range(min(num, 4))
    ]
    rows += [fixed.encode(np.full(3, 9.0))] * (num - len(rows))  # clipped to the limit
    total = sum(fixed.embed(row).astype(object) for row in rows) % modulus
    assert fixed.lift(total.astype(np.uint32)).tolist() == sum(row.astype(object) for row in rows).tolist()


def test_values() -> None:
    fixed = FixedPoint(1 << 32, 2, clip=0.5)
    assert fixed.limit == (2**31 - 1) // 2
    assert fixed.encode(np.array([0.5, -0.5, 9.0, 0.0])).tolist() == [fixed.limit, -fixed.limit, fixed.limit, 0]
    assert fixed.decode(np.array([fixed.limit])) == pytest.approx([0.5])
    assert fixed.embed(np.array([-1])).tolist() == [2**32 - 1]
    assert FixedPoint(NTT_PRIME, 2).embed(np.array([-1])).tolist() == [NTT_PRIME - 1]


def test_bad_cases() -> None:
    with pytest.raises(CapacityError, match="8 bits"):
        FixedPoint(1 << 16, 500)
    with pytest.raises(ConfigError, match="modulus"):
        FixedPoint(1 << 33, 2)
    with pytest.raises(ConfigError, match="clip"):
        FixedPoint(1 << 32, 2, clip=0.0)
    with pytest.raises(UsageError, match="NaN"):
        FixedPoint(1 << 32, 2).encode(np.array([np.nan]))
