"""Heavy sums over worker processes on Ray, on this machine: `ebscfl.pool.Pool` as a thin layer over tasks.

Ray is part of the extra ``federation`` (Flower's simulation runs on it) and is imported only when workers are asked
for. What is sent to a worker may be secret (one-time keys), so the Ray that is started here is ours alone: it listens
on the loopback interface, every connection needs a token made for this process, its files lie in a directory nobody
else can enter, and it has no dashboard, no usage reports and no spilling of objects to disk.

A share depends on its arguments only, so a worker that dies costs time and nothing else: Ray computes its share again,
and when Ray itself is gone, this process does. Either way the sum has the same bits.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ebscfl import rng
from ebscfl.errors import ConfigError, DependencyError
from ebscfl.pool import IN_PLACE, Pool

LOG = logging.getLogger("ebscfl.federation")

LOOPBACK = "127.0.0.1"
STORE_BYTES = 1 << 30
"""Shared memory of Ray's objects: an upper bound, taken as it is used."""
SHARED_MEMORY = Path("/dev/shm")
SHARE_S = 300.0
"""A share that takes longer is computed here."""
POLL_S = 1.0
"""How often to see whether Ray still lives, while a share is computed."""
RETRIES = 3
_SYSTEM = {
    "automatic_object_spilling_enabled": False,  # objects may be secret: never to a disk
    "memory_monitor_refresh_ms": 0,  # it kills workers on a full machine, over and over
    "gcs_rpc_server_reconnect_timeout_s": 1 << 30,  # else this process is ended when Ray's own store of names died
}


def open_pool(workers: int) -> Pool:
    """``workers`` processes that compute shares; 0: this process does, as without this module. Close it in the end."""
    if workers < 0:
        raise ConfigError(f"workers must be 0 (none) or more, not {workers}")
    return RayPool(workers) if workers else IN_PLACE


class _Lost(Exception):
    """Ray will not compute what it was asked for."""


@dataclass(frozen=True, eq=False)
class _Held:
    """A value with its place in Ray's store."""

    value: Any
    place: Any


class RayPool(Pool):
    """Worker processes of a Ray that lives and dies with this process.

    Open it in a thread that lives as long: Linux ends Ray when the thread that started it ends.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._gone = False
        self._ray = _import_ray()
        if self._ray.is_initialized():
            raise ConfigError("Ray runs in this process already (Flower's simulation does that): set workers to 0")
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._start()
            undo.pop_all()
        self._task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(compute)

    def _start(self) -> None:
        # Ray opens its directory to everybody, so it gets one below a directory that is closed to them.
        private = Path(tempfile.mkdtemp(prefix="ebscfl-"))
        self._closing.callback(shutil.rmtree, private, ignore_errors=True)
        shared = SHARED_MEMORY.is_dir()
        store = min(STORE_BYTES, int(0.8 * shutil.disk_usage(SHARED_MEMORY).free)) if shared else STORE_BYTES
        self._closing.callback(self._ray.shutdown)
        with _kept_signals(), _same_modules():
            self._ray.init(
                address="local", num_cpus=self.workers, num_gpus=0, include_dashboard=False,
                object_store_memory=store, log_to_driver=False, configure_logging=False, _temp_dir=str(private / "r"),
                _node_ip_address=LOOPBACK, _plasma_directory=str(SHARED_MEMORY) if shared else None,
                _system_config=_SYSTEM,
            )  # fmt: skip
        if (where := self._ray.util.get_node_ip_address()) != LOOPBACK:
            raise ConfigError(f"this Ray listens on {where}, not on the loopback interface: set workers to 0")

    def hold(self, value: Any) -> Any:
        try:
            return _Held(value, self._ray.put(value) if self._alive() else None)
        except self._ray.exceptions.RayError as error:  # the store is full
            LOG.warning("an object is sent with every call: %s", str(error).partition("\n")[0])
            return _Held(value, None)

    def map(
        self, call: Callable[..., Any], common: Any, shares: Sequence[tuple[Any, ...]], *, spare: bool = False
    ) -> list[Any]:
        if self._alive():
            try:
                return list(self._results(call, common, shares, self.workers if spare else 4 * self.workers))
            except self._ray.exceptions.RayTaskError:
                pass  # the call failed and not Ray: computed here its error is raised as what it is
            except (_Lost, self._ray.exceptions.RayError) as error:
                LOG.warning("computing %d shares here: %s", len(shares), str(error).partition("\n")[0])
                self._alive()  # if Ray itself is gone, it is not asked again
        return super().map(call, common, [tuple(map(_value, share)) for share in shares])

    def _results(
        self, call: Callable[..., Any], common: Any, shares: Sequence[tuple[Any, ...]], most: int
    ) -> Iterator[Any]:
        place, waiting = self._ray.put(common), deque[Any]()
        for share in shares:
            if len(waiting) == most:
                yield self._own(waiting.popleft())
            waiting.append(self._task.remote(call, place, *(self._placed(part) for part in share)))
        while waiting:
            yield self._own(waiting.popleft())

    def _placed(self, part: Any) -> Any:
        if not isinstance(part, _Held):
            return part
        return part.value if part.place is None else part.place

    def _own(self, result: Any) -> Any:
        """A copy outside Ray's store, which can be written to (and wiped)."""
        end = time.monotonic() + SHARE_S
        while not self._ray.wait([result], timeout=POLL_S)[0]:
            if not self._alive():
                raise _Lost("Ray ended")
            if time.monotonic() > end:
                raise _Lost(f"a share was not computed within {SHARE_S:.0f} s")
        return copy.deepcopy(self._ray.get(result))

    def _alive(self) -> bool:
        """Whether there is still a Ray to send shares to. Speaking to a dead one would end this process."""
        if self._gone:
            return False
        dead = {kind for kind, _ in self._ray._private.worker._global_node.dead_processes()}
        if lost := dead & {"raylet", "gcs_server"}:
            self._give_up(f"its {lost.pop()} ended")
        return not self._gone

    def _give_up(self, why: object) -> None:
        if self._gone:
            return
        self._gone = True
        LOG.error("Ray is lost, sums are computed in this process from now on: %s", str(why).partition("\n")[0])
        self._ray.shutdown()  # what is left of it would go on looking for its objects, and end this process

    def close(self) -> None:
        self._closing.close()


def compute(call: Callable[..., Any], common: Any, *share: Any) -> Any:
    """What a worker does: ``call`` on copies of its own, since what comes out of Ray's store cannot be written to."""
    return call(*copy.deepcopy((common, *share)))


def _value(part: Any) -> Any:
    return part.value if isinstance(part, _Held) else part


@cache
def _token() -> str:
    """One for this process: Ray reads it once."""
    return rng.os_random(32).hex()


def ray_settings() -> Mapping[str, str]:
    """Environment of the Ray that is started here: only this process's token gets in, and nothing is reported."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _token(),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for: the loopback interface only, on every system
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # it would run `uv` for each worker
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _import_ray() -> Any:
    os.environ.update(ray_settings())  # Ray reads some of them when it is imported
    try:
        import ray
        import ray.exceptions
        import ray.util
    except ModuleNotFoundError as error:
        raise DependencyError("worker processes need Ray: pip install 'ebscfl[federation]'") from error
    if _open_to_all(ray):  # somebody imported it before, and with other settings
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
        raylet: Any = ray._raylet
        with contextlib.suppress(AttributeError):
            raylet.Config.initialize(json.dumps({"AUTH_MODE": "token"}))
    if _open_to_all(ray):
        raise ConfigError("this Ray does not ask for a token: set workers to 0")
    return ray


def _open_to_all(ray: Any) -> bool:
    mode = getattr(ray._raylet, "get_authentication_mode", None)  # an old Ray has none
    return mode is None or bool(mode() != ray._raylet.AuthenticationMode.TOKEN)


@contextlib.contextmanager
def _same_modules() -> Iterator[None]:
    """Workers find the modules that this process finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray takes over SIGTERM; this gives it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
