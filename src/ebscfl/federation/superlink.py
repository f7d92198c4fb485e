"""How Flower's processes are started: TLS everywhere, nodes known by their keys, nothing installed at run time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import ebscfl
from ebscfl.federation.processes import flower_command
from ebscfl.flower import ENVIRONMENT
from ebscfl.kdc_service.deployment import write_durably, write_private

CONNECTION = "ebscfl"


def make_node_key(directory: Path) -> Path:
    """``node.key`` and ``node.pub``: what the SuperLink knows a SuperNode by. Returns the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private(directory / "node.key", private)
    write_durably(directory / "node.pub", public)
    return directory / "node.pub"


def flower_environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every Flower process: quiet, its files in ``home``, our Python's commands first."""
    base = os.environ if base is None else base
    path = os.pathsep.join((str(Path(sys.executable).parent), base.get("PATH", os.defpath)))
    # Runners start in other folders: they must find the very package this process runs.
    modules = os.pathsep.join((str(Path(ebscfl.__file__).resolve().parents[1]), base.get("PYTHONPATH", "")))
    return {**base, **ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path, "PYTHONPATH": modules.rstrip(os.pathsep)}


def superlink_command(directory: Path, port: int, *, host: str = "127.0.0.1") -> list[str]:
    """The SuperLink on the server's certificate."""
    return [
        flower_command("flower-superlink"), "--host", host, "--port", str(port),
        "--ssl-certfile", str(directory / "tls.pem"), "--ssl-keyfile", str(directory / "tls.key"),
        "--ssl-ca-certfile", str(directory / "ca.pem"), "--enable-supernode-auth",
        "--database", str(directory / "superlink.sqlite"), "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def supernode_command(directory: Path, superlink: str, port: int, *, share_evaluation: bool = False) -> list[str]:
    """A SuperNode on a client's directory; ``port`` is for its own runner, on the loopback interface."""
    config = f'directory="{directory}" share-evaluation={json.dumps(share_evaluation)}'
    return [
        sys.executable, "-m", "ebscfl.flower.supernode", "--superlink", superlink,
        "--root-certificates", str(directory / "ca.pem"), "--auth-supernode-private-key", str(directory / "node.key"),
        "--node-config", config, "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip


def write_connection(home: Path, superlink: str, authority: Path) -> None:
    """Flower's own configuration file with one connection, `CONNECTION`."""
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{superlink}"\nroot-certificates = "{authority.resolve()}"\n'
    )
    write_durably(home / "config.toml", text.encode())
