"""Flower's own line breaks: pieces between a SuperNode and the SuperLink come late, cut, corrupted, doubled or never.

One federation of real processes trains a step a fault; one client's whole traffic passes through a `FaultProxy`. At the
end every step must have summed every client, as in `kills`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebscfl.federation.demo import Demo, Say
from ebscfl.federation.kills import Case, Kill, document_of
from ebscfl.federation.processes import Children, ProcessFailed
from ebscfl.federation.proxy import Fault, FaultProxy
from ebscfl.federation.site import SiteSettings

LINE = "Flower's line"
FAULTS = (Fault.DELAY, Fault.DROP, Fault.CORRUPT, Fault.DUPLICATE, Fault.CUT)
MOST = 3
"""Broken pieces a step: more would keep the client away, which is another case."""
EVERY = 5
"""Pieces from one broken one to the next, so that a new connection gets a chance to speak."""


class Breaker:
    """A plan for the proxy that can be changed while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fault, self._pieces, self.broken = Fault.NONE, 0, 0

    def begin(self, fault: Fault) -> None:
        """Break pieces this way from now on."""
        with self._lock:
            self._fault, self._pieces, self.broken = fault, 0, 0

    def __call__(self, piece: int, way: str) -> Fault:
        with self._lock:
            self._pieces += 1
            if self._fault is Fault.NONE or self.broken == MOST or self._pieces % EVERY != 1:
                return Fault.NONE
            self.broken += 1
            return self._fault


class LineSite(Demo):
    """A demo whose last client reaches the SuperLink through a proxy."""

    proxy: FaultProxy | None = None

    def link_of(self, client: int) -> str:
        if self.proxy is None or client != self.settings.nodes - 1:
            return self.link
        return f"127.0.0.1:{self.proxy.port}"


def run_lines(
    home: Path, faults: Sequence[Fault] = FAULTS, *, nodes: int = 3, say: Say = lambda text: None
) -> dict[str, Any]:
    """Play the faults below ``home``; everything that was started is stopped when this returns or raises."""
    sets = ("data.groups=2", "attacks=[]", f"secure.quorum={nodes - 1}")
    site = LineSite(home, SiteSettings("smoke", nodes, len(faults) + 1, timeout_s=400.0, sets=sets), say)
    breaker, started, cases, broken = Breaker(), time.monotonic(), [], []
    with (
        FaultProxy(site.link_port, breaker, delay_s=1.0) as site.proxy,
        Children(site.home / "logs", {**site.environment, "OMP_NUM_THREADS": "1"}) as children,
    ):
        site.start_all(children)
        site.submit(children)
        site.wait_for_step(children, 1)
        for step, fault in enumerate(faults, start=2):
            say(f"step {step}: {LINE}, {fault.value}")
            begun = time.monotonic()
            breaker.begin(fault)
            site.wait_for_step(children, step)
            broken.append(breaker.broken)
            cases.append(Case(Kill(LINE, fault.value), step, round(time.monotonic() - begun, 1)))
        breaker.begin(Fault.NONE)
        children.wait_for((site.server / "results.json").exists, "the end of the run", timeout_s=120)
    if 0 in broken:
        raise ProcessFailed(f"nothing passed the proxy while it was to break it: {broken}")
    return {**document_of(site, cases, round(time.monotonic() - started, 1)), "pieces_broken": broken}
