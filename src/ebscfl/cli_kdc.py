"""``ebs-cfl kdc ...`` and ``ebs-cfl client ...``: the operator's and the client owner's commands."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from ebscfl.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="The key centre: make a federation, serve it, enrol its parties.")
client_app = typer.Typer(no_args_is_help=True, help="A client of a federation: its keys, its enrolment, its SuperNode.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The party's directory.")]


@app.command("init")
def init_command(
    directory: Directory,
    config: Annotated[Path, typer.Option(help="The run's TOML file: its protocol, clients, clusters and model count.")],
    host: Annotated[str, typer.Option(help="Where the key centre listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="And on which port.")] = 9443,
) -> None:
    """Make a new federation: authority, the key centre's certificate and secret, run.json."""
    from ebscfl.config import load_preset
    from ebscfl.federation.training import setup_of
    from ebscfl.kdc_service.deployment import RunFile, fresh_run_id, init_kdc

    setup = setup_of(load_preset(str(config)), fresh_run_id())
    init_kdc(directory, RunFile(setup, host, port))
    print(setup.run_id.hex())
    print(f"{directory}: a federation of {setup.num_clients} clients; keep ca.key and root.key secret", file=sys.stderr)


@app.command("enrol")
def enrol_command(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="The party's new directory, to be carried to its machine.")],
    client: Annotated[int | None, typer.Option(help="Which client.")] = None,
    server: Annotated[bool, typer.Option("--server", help="The server instead of a client.")] = False,
    host: Annotated[list[str] | None, typer.Option(help="Names of the server's machine in its certificate.")] = None,
    request: Annotated[Path | None, typer.Option(help="The client's own request (request.csr).")] = None,
) -> None:
    """Write a party's directory with its certificate; with --request its private key stays where it was made."""
    from ebscfl.ids import SERVER, client_address
    from ebscfl.kdc_service.deployment import hand_out

    if (client is None) == (not server):
        raise UsageError("name one party: --client N or --server")
    address = SERVER if client is None else client_address(client)
    signing = request.read_bytes() if request else None
    hand_out(directory, address, out, request=signing, hosts=tuple(host or ()))
    print(f"{out}: directory of {address}")


@app.command("serve")
def serve_command(
    directory: Directory,
    port: Annotated[int | None, typer.Option(help="Another port than run.json's.")] = None,
    metrics_port: Annotated[int, typer.Option(help="Health and metrics on 127.0.0.1; 0: any free port.")] = 9444,
    workers: Annotated[int, typer.Option(help="Processes that share the heavy sums; 0: none.")] = 0,
) -> None:
    """Serve until stopped (SIGTERM or Ctrl-C)."""
    from ebscfl.federation.scaleout import open_pool
    from ebscfl.kdc_service.deployment import open_service
    from ebscfl.kdc_service.metrics import MetricsServer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with open_pool(workers) as pool:
        service = open_service(directory, port=port, pool=pool)
        pages = MetricsServer(service.metrics, service.complaint, metrics_port)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        service.start()
        pages.start()
        print(f"serving on port {service.port}, health and metrics on 127.0.0.1:{pages.port}", flush=True)
        stop.wait()
        pages.stop()
        service.stop()


@app.command("status")
def status_command(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Enrolled clients, the newest round, who is barred, whether the server was caught: as of the last change."""
    from ebscfl.kdc_service.deployment import kept_state

    state = kept_state(directory)
    print(json.dumps(state) if as_json else "\n".join(f"{key}: {value}" for key, value in state.items()))


@client_app.command("init")
def client_init_command(
    directory: Directory,
    run_id: Annotated[str, typer.Option(help="The federation's id, as `ebs-cfl kdc init` prints it.")],
    client: Annotated[int, typer.Option(help="The client's number.")],
) -> None:
    """Make the client's own keys and its certificate request."""
    from ebscfl.ids import client_address
    from ebscfl.kdc_service.deployment import init_party

    try:
        run = bytes.fromhex(run_id)
    except ValueError:
        raise UsageError(f"a run id is hexadecimal, not {run_id!r}") from None
    print(init_party(directory, run, client_address(client)))


@client_app.command("enrol")
def client_enrol_command(directory: Directory) -> None:
    """Get the client's master key from the key centre (once; repeating it is harmless)."""
    from ebscfl.federation.client_agent import ClientAgent
    from ebscfl.kdc_service.deployment import party_of

    agent = ClientAgent(directory, party_of(directory).client)
    agent.enrol()
    print(f"{agent.role.address} is enrolled")


@client_app.command("node-key")
def client_node_key_command(directory: Directory) -> None:
    """Make the key the SuperLink knows this client's SuperNode by; prints the public file to register."""
    from ebscfl.federation.superlink import make_node_key

    print(make_node_key(directory))


@client_app.command("allow")
def client_allow_command(
    directory: Directory, bundle: Annotated[Path, typer.Argument(help="A .fab you have read.")]
) -> None:
    """Let the server run this app bundle here."""
    from ebscfl.flower.guard import app_hash

    with open(directory / "allowed-apps.txt", "a", encoding="ascii") as file:
        file.write(f"{app_hash(bundle.read_bytes())}  # {bundle.name}\n")
    print(app_hash(bundle.read_bytes()))


@client_app.command("serve")
def client_serve_command(
    directory: Directory,
    superlink: Annotated[str, typer.Option(help="host:port of the SuperLink.")],
    port: Annotated[int, typer.Option(help="Loopback port of the SuperNode's own runner.")] = 9094,
    share_evaluation: Annotated[bool, typer.Option("--share-evaluation", help="Answer EVALUATE messages.")] = False,
) -> None:
    """Become a SuperNode that runs allowed apps only."""
    from ebscfl.federation.superlink import flower_environment, supernode_command
    from ebscfl.flower import guard

    directory = directory.resolve()
    command = supernode_command(directory, superlink, port, share_evaluation=share_evaluation)
    environment = flower_environment(directory / "flower")
    environment = guard.install(directory / "runners", directory / "allowed-apps.txt", environment)
    os.execve(command[0], command, environment)
