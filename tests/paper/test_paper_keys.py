"""Keys are read-only, never print, and can be wiped."""

import numpy as np
import pytest
from paper_rounds import SMALL, Round

from ebscfl.paper.keys import SecretArrays


def arrays_of(item):
    if isinstance(item, np.ndarray):
        yield item
    elif isinstance(item, tuple):
        for part in item:
            yield from arrays_of(part)
    elif isinstance(item, SecretArrays):
        for value in vars(item).values():
            yield from arrays_of(value)


@pytest.mark.parametrize("name", ["pairs, last group half full", "naive"])
def test_keys_are_read_only_redacted_and_wiped(name):
    done = Round(SMALL[name])
    for item in (done.dealt, done.round_keys):
        assert "redacted" in repr(item)
        assert "array" not in f"{item!r}{item}"
        arrays = list(arrays_of(item))
        assert len(arrays) > 3
        assert not any(array.flags.writeable for array in arrays)
        assert item.nbytes == sum(array.nbytes for array in arrays)
        with pytest.raises(ValueError, match="read-only"):
            arrays[0].reshape(-1)[0] = 1
        item.wipe()
        item.wipe()
        assert not any(array.any() for array in arrays)
        assert not any(array.flags.writeable for array in arrays)


def test_wiping_one_partys_keys_leaves_the_others_alone():
    done = Round(SMALL["one client a group"])
    expected = done.encode(1)
    done.dealt.client_keys[0].wipe()
    done.round_keys.client[0].wipe()
    done.dealt.secret.wipe()
    assert np.array_equal(done.encode(1), expected)
    assert done.aggregate()[1] > 0
    done.server_key.wipe()
    assert np.array_equal(done.encode(1), expected)
