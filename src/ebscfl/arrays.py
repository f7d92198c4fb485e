"""The one gate through which callers' arrays enter rules and attacks: numpy or torch in, the same kind out.

Inside, everything is a torch tensor (a numpy array is wrapped without a copy), so one body serves CPU and CUDA.
Nothing is cast silently: integers, complex numbers and half-precision are refused, NaN and infinity are refused
and the rows that hold them are named.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.errors import ProtocolError, UsageError

Array = npt.NDArray[np.floating] | torch.Tensor
ArrayT = TypeVar("ArrayT", npt.NDArray[np.floating], torch.Tensor)


def as_tensor(values: Array, *, name: str, ndim: int) -> torch.Tensor:
    """``values`` as a float32 or float64 tensor with ``ndim`` axes, sharing memory where possible."""
    if isinstance(values, np.ndarray):
        if values.dtype not in (np.float32, np.float64):
            raise UsageError(f"{name} must be float32 or float64, not {values.dtype}")
        # torch warns about read-only memory although we never write to it; a copy is the honest way round.
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    elif isinstance(values, torch.Tensor):
        if values.dtype not in (torch.float32, torch.float64):
            raise UsageError(f"{name} must be float32 or float64, not {values.dtype}")
        tensor = values.detach()
    else:
        raise UsageError(f"{name} must be a numpy array or torch tensor, not {type(values).__name__}")
    if tensor.ndim != ndim:
        raise UsageError(f"{name} must have {ndim} axes, not shape {tuple(tensor.shape)}")
    return tensor


def as_updates(values: Array, *, name: str = "updates") -> torch.Tensor:
    """An (n, d) matrix of finite updates, n and d at least 1. A bad row is a `ProtocolError` that names it."""
    tensor = as_tensor(values, name=name, ndim=2)
    if tensor.shape[0] == 0 or tensor.shape[1] == 0:
        raise UsageError(f"{name} is empty: shape {tuple(tensor.shape)}")
    # A row sum is finite unless the row holds NaN or infinity (or overflows, which is as useless).
    suspicious = ~torch.isfinite(tensor.sum(dim=1))
    if bool(suspicious.any()):
        rows = [int(i) for i in suspicious.nonzero()[:, 0] if not bool(torch.isfinite(tensor[i]).all())]
        if rows:
            raise ProtocolError(f"{name} of {rows} hold NaN or infinity", culprits=rows)
    return tensor


def like(result: torch.Tensor, original: ArrayT) -> ArrayT:
    """``result`` as the kind of array ``original`` is."""
    if isinstance(original, np.ndarray):
        return result.cpu().numpy()
    return result
