"""One arithmetic thread per test process, and threads that sleep instead of spinning while they wait.

Must come before torch or numpy is imported. Sums of floats depend on the number of threads, so tests fix it; and
spinning threads of several processes on two cores cost minutes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
