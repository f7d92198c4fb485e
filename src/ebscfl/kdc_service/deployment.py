"""The files of one federation, per party, and the objects made from them.

    <kdc>/      run.json  root.key  ca.pem  ca.key  tls.pem  tls.key  kdc.sqlite  newest-round  lock
    <party>/    run.json  root.key  ca.pem  tls.pem  tls.key  (client.csr)            server and each client

``run.json`` holds no secret and is the same for all: the set-up and where the key centre listens. Each ``root.key`` is
32 bytes of its owner alone; the roles derive every secret of theirs from it. Only its owner can read a key file.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ebscfl import rng
from ebscfl.errors import ConfigError, DataError, SequenceError, UsageError
from ebscfl.ids import KDC, SERVER, Address, Role
from ebscfl.kdc_service import certificates
from ebscfl.kdc_service.limits import Limits
from ebscfl.kdc_service.metrics import Metrics
from ebscfl.kdc_service.service import HostedRole, KdcService
from ebscfl.kdc_service.stub import KdcStub, Patience
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.protocol import codec
from ebscfl.protocol.messages import OpenRound
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup

if TYPE_CHECKING:
    from ebscfl.protocol.sealed.store import SqliteStore

DEFAULT_PORT = 9443
STORE = "kdc.sqlite"


@dataclass(frozen=True)
class RunFile:
    """``run.json``: what every party of a federation knows."""

    setup: Setup
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def to_json(self) -> str:
        """The document."""
        setup = dataclasses.asdict(self.setup) | {"run_id": self.setup.run_id.hex()}
        return json.dumps({"setup": setup, "host": self.host, "port": self.port}, indent=2) + "\n"

    @staticmethod
    def load(directory: Path) -> RunFile:
        """Read ``run.json`` of a party's directory."""
        path = directory / "run.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            table = dict(document["setup"])
            table["run_id"] = bytes.fromhex(table["run_id"])
            return RunFile(Setup(**table), str(document["host"]), int(document["port"]))
        except FileNotFoundError:
            raise ConfigError(
                f"{path} is missing: `ebs-cfl kdc init` makes it, `ebs-cfl kdc enrol` hands it out"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a run file: {error}") from error


# --- making the files -------------------------------------------------------------------------------------------------


def write_private(path: Path, content: bytes) -> None:
    """A file only its owner reads, whole or not at all."""
    write_durably(path, content, mode=0o600)


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` so that a crash leaves the old content or the new, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def init_kdc(directory: Path, run: RunFile, *, hosts: Sequence[str] = ()) -> None:
    """A new federation: authority, key centre's certificate, its secret root. Refuses to overwrite one."""
    if (directory / "run.json").exists():
        raise UsageError(f"{directory} holds a federation already: choose another directory")
    make_roles(run.setup, bytes(rng.ROOT_SIZE))  # refuse an impossible set-up before anything is written
    run_id = run.setup.run_id
    authority = certificates.make_authority()
    own = certificates.issue(authority, run_id, KDC, tuple(dict.fromkeys((run.host, *hosts))))
    write_durably(directory / "ca.pem", authority.certificate)
    write_private(directory / "ca.key", authority.private_key)
    write_durably(directory / "tls.pem", own.certificate)
    write_private(directory / "tls.key", own.private_key)
    write_private(directory / "root.key", rng.os_random(rng.ROOT_SIZE))
    if run.setup.protocol == "sealed":
        _open_store(directory).close()
    write_durably(directory / "run.json", run.to_json().encode())


def fresh_run_id() -> bytes:
    """A run id no other federation has."""
    return rng.os_random(codec.RUN_TAG_SIZE)


def authority_of(directory: Path) -> certificates.Identity:
    """The authority kept in the key centre's directory."""
    return certificates.Identity(_read(directory / "ca.pem"), _read(directory / "ca.key"))


def hand_out(
    kdc: Path, address: Address, out: Path, *, request: bytes | None = None, hosts: Sequence[str] = ()
) -> None:
    """Write a party's directory: certificate (for its own request, or with a key made here) and run file."""
    run = RunFile.load(kdc)
    if address.role is Role.CLIENT and not 0 <= address.client < run.setup.num_clients:
        raise UsageError(f"{address} is outside the run's {run.setup.num_clients} clients")
    authority, run_id = authority_of(kdc), run.setup.run_id
    if request is not None:
        certificate = certificates.sign_request(authority, request, run_id, address)
    else:
        identity = certificates.issue(authority, run_id, address, hosts)
        certificate = identity.certificate
        write_private(out / "tls.key", identity.private_key)
    write_durably(out / "tls.pem", certificate)
    write_durably(out / "ca.pem", authority.certificate)
    write_durably(out / "run.json", run.to_json().encode())


def init_party(directory: Path, run_id: bytes, address: Address) -> Path:
    """A party's own secrets and its certificate request, made where they stay; returns the request's path."""
    if (directory / "tls.key").exists():
        raise UsageError(f"{directory} holds keys already: choose another directory")
    request, key = certificates.make_request(run_id, address)
    write_private(directory / "tls.key", key)
    root_of(directory)
    write_durably(directory / "request.csr", request)
    return directory / "request.csr"


def root_of(directory: Path) -> bytes:
    """The party's secret root, made at the first use."""
    path = directory / "root.key"
    if not path.exists():
        write_private(path, rng.os_random(rng.ROOT_SIZE))
    root = _read(path)
    if len(root) != rng.ROOT_SIZE:
        raise DataError(f"{path} must have {rng.ROOT_SIZE} bytes, not {len(root)}")
    return root


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


# --- objects from the files -------------------------------------------------------------------------------------------


def open_stub(directory: Path, *, patience: Patience | None = None, port: int | None = None) -> KdcStub:
    """A party's line to the key centre."""
    run = RunFile.load(directory)
    context = certificates.tls_context(
        directory / "tls.pem", directory / "tls.key", directory / "ca.pem", server_side=False
    )
    return KdcStub(run.host, port or run.port, context, run.setup.run_id, patience=patience)


def server_role(directory: Path, pool: Pool = IN_PLACE) -> ServerRole:
    """The server's role of this run; it has no secret."""
    role = make_roles(RunFile.load(directory).setup, bytes(rng.ROOT_SIZE))[1]
    role.use(pool)
    return role


def client_role(directory: Path, client: int) -> ClientRole:
    """One client's role, its secrets from its own root."""
    run = RunFile.load(directory)
    if not 0 <= client < run.setup.num_clients:
        raise ConfigError(f"client {client} is outside the run's {run.setup.num_clients} clients")
    return make_roles(run.setup, root_of(directory))[2][client]


def party_of(directory: Path) -> Address:
    """Whose directory this is, by its certificate."""
    run_id = RunFile.load(directory).setup.run_id
    return certificates.address_of_certificate(_read(directory / "tls.pem"), run_id)


def open_service(
    directory: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    pool: Pool = IN_PLACE,
) -> KdcService:
    """The service of a key centre's directory. Only one process may serve a directory at a time."""
    run = RunFile.load(directory)
    if run.setup.protocol == "sealed" and not (directory / STORE).exists():
        raise ConfigError(
            f"{directory / STORE} is gone, and with it which keys were used: make a new federation with `kdc init`"
        )
    lock = _lock(directory / "lock")
    context = certificates.tls_context(
        directory / "tls.pem", directory / "tls.key", directory / "ca.pem", server_side=True
    )
    root = _read(directory / "root.key")
    service = KdcService(
        run.setup,
        lambda: host_role(run.setup, root, directory, pool),
        context,
        host=run.host if host is None else host,
        port=run.port if port is None else port,
        limits=limits,
        metrics=metrics,
        publish=partial(_publish, directory),
    )
    service.held = lock
    return service


def _lock(path: Path) -> IO[str]:
    file = open(path, "w", encoding="ascii")  # noqa: SIM115 - held as long as the service lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"another key centre serves {path.parent}: stop it first") from None
    return file


def _open_store(directory: Path) -> SqliteStore:
    """The durable memory of `sealed`: made by `init_kdc`, never again. A new one would answer used keys."""
    from ebscfl.protocol.sealed.store import SqliteStore

    return SqliteStore(directory / STORE)


def host_role(setup: Setup, root: bytes, directory: Path, pool: Pool = IN_PLACE) -> HostedRole:
    """The key centre's role with its durable memory: the store of `sealed`, or a note of the newest round."""
    hosted = _with_memory(setup, root, directory)
    hosted.role.use(pool)
    return hosted


def _with_memory(setup: Setup, root: bytes, directory: Path) -> HostedRole:
    if setup.protocol == "sealed":
        store = _open_store(directory)
        with_store = dataclasses.replace(setup, options={**setup.options, "store": store})
        return HostedRole(
            role=make_roles(with_store, root)[0],
            newest_round=lambda: store.current_round()[0],
            complaint=lambda: _halted(store.halted()),
            enrolled=lambda: len(store.enrolled()),
            admit=lambda message: None,
            describe=lambda: describe_store(store),
            close=store.close,
        )
    note = RoundNote(directory / "newest-round", setup.run_id)
    role: KdcRole = make_roles(setup, root)[0]
    return HostedRole(
        role=role,
        newest_round=lambda: note.newest,
        complaint=lambda: None,
        enrolled=lambda: 0,
        admit=note.admit,
        describe=lambda: {"newest_round": note.newest},
        close=lambda: None,
    )


def describe_store(store: SqliteStore) -> dict[str, Any]:
    """What the operator may see of the store: no key, no weight."""
    newest, _ = store.current_round()
    return {
        "enrolled": list(store.enrolled()),
        "newest_round": newest,
        "barred": {str(client): why for client, why in store.barred().items()},
        "halted": store.halted(),
    }


def _halted(reason: str | None) -> str | None:
    return None if reason is None else f"the server was caught: {reason}"


class RoundNote:
    """The newest round of a key centre that keeps nothing else: its keys derive from the round, so none may repeat."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self._path = path
        self._run_id = run_id
        self.newest = int(path.read_text()) if path.exists() else -1

    def admit(self, message: bytes) -> None:
        """Use up the round of an `OpenRound`, durably, before the role sees it."""
        if codec.HEADER.unpack(message[: codec.HEADER.size])[2] != OpenRound.code:
            return
        opened = codec.decode(message, self._run_id)
        assert isinstance(opened, OpenRound)
        if opened.round_id <= self.newest:
            raise SequenceError(f"round {opened.round_id} is not newer than {self.newest}", culprits=(SERVER,))
        write_durably(self._path, str(opened.round_id).encode())
        self.newest = opened.round_id


def kept_state(directory: Path) -> dict[str, Any]:
    """What the key centre published last, for ``ebs-cfl kdc status``; the store itself is its own while it serves."""
    setup = RunFile.load(directory).setup
    known = {"run": setup.run_id.hex(), "protocol": setup.protocol, "clients": setup.num_clients}
    path = directory / "status.json"
    if not path.exists():
        return {**known, "served": False}
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**known, "served": True, **state}


def _publish(directory: Path, state: dict[str, Any]) -> None:
    temporary = directory / ".status.json.tmp"
    temporary.write_text(json.dumps(state) + "\n", encoding="utf-8")
    os.replace(temporary, directory / "status.json")  # for people: a power cut may lose it, the store may not
