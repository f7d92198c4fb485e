"""The baseline: under `plain` the server reads every update and cluster in the upload itself."""

from __future__ import annotations

import numpy as np

from ebscfl.audit.views import Estimate, View, stacked
from ebscfl.protocol.messages import PlainUpload


def read(view: View) -> Estimate:
    """Nothing to break."""
    claims = [(i, np.array(m.update, dtype=np.float64), m.cluster) for i, m in view.uploads(PlainUpload)]
    return stacked(view, claims, note="uploads are in the clear")
