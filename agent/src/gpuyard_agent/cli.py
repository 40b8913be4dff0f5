"""The command line: `gpuyard-agent run --server URL --state DIR --name NAME …`."""

import argparse
import logging
import os
import re
import socket
import sys
from collections.abc import Sequence

import httpx

from gpuyard_agent import __version__, shim
from gpuyard_agent.client import (
    Backoff,
    NameTaken,
    RequestRefused,
    ServerClient,
    ServerError,
    Unauthorized,
    is_loopback,
)
from gpuyard_agent.devices.base import DeviceBackend
from gpuyard_agent.devices.simulated import BadSimulation, parse_simulation
from gpuyard_agent.executor import Executor
from gpuyard_agent.loop import Agent, Settings
from gpuyard_agent.protocol import JoinAnswer, JoinRequest, MalformedAnswer
from gpuyard_agent.replicas import ReplicaStore
from gpuyard_agent.runner.process import ProcessRunner
from gpuyard_agent.state import AlreadyRunning, BadState, NodeRecord, StateFolder
from gpuyard_agent.waiter import Waiter

logger = logging.getLogger(__name__)

JOIN_TOKEN_VARIABLE = "GPUYARD_JOIN_TOKEN"  # noqa: S105  # a variable's name
SIMULATED_CPU_M_PER_GPU = 12_000
SIMULATED_MEMORY_MIB_PER_GPU = 65_536
EXIT_REFUSED = 1
EXIT_USAGE = 2


class JoinRefused(Exception):
    """The server will not take this node in."""


class UsageError(Exception):
    """The command line cannot be followed."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuyard-agent", description="The GPU Yard node agent.")
    parser.add_argument("--version", action="version", version=__version__)
    run = parser.add_subparsers(dest="command", required=True).add_parser(
        "run", help="run the agent on this node"
    )
    run.add_argument("--server", required=True, metavar="URL", help="the GPU Yard web server")
    run.add_argument("--state", required=True, metavar="DIR", help="where the agent keeps its state")
    run.add_argument("--name", required=True, help="the node's name; it cannot change after the join")
    run.add_argument("--join-token", help=f"for the first start only; better given as {JOIN_TOKEN_VARIABLE}")
    run.add_argument("--simulate", metavar="GPUS", help="pretend to have GPUs, such as 8xh100-80g,2xl4-24g")
    run.add_argument(
        "--advertise-address", metavar="ADDRESS", help="where other nodes and users reach services"
    )
    run.add_argument(
        "--ports", default="20000-20099", type=_port_range, help="for services, both ends included"
    )
    run.add_argument("--cpu-m", type=int, help="CPU that replicas may use, in thousandths of a core")
    run.add_argument("--memory-mib", type=int, help="memory that replicas may use")
    run.add_argument("--once", action="store_true", help="sync once and end; replicas run on")
    return parser


def _port_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 20000-20099, within 1024-65535")
    return int(match[1]), int(match[2])


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    try:
        return _run(options)
    except (UsageError, BadSimulation) as error:
        logger.error("%s", error)
        return EXIT_USAGE
    except (AlreadyRunning, BadState, JoinRefused) as error:
        logger.error("%s", error)
        return EXIT_REFUSED


def _run(options: argparse.Namespace) -> int:
    server = _server_url(options.server)
    devices = _devices(options)
    settings = _settings(options, devices)
    state = StateFolder(options.state)
    supervisor = shim.supervisor_descriptor()
    waiter = Waiter(supervisor)
    client = ServerClient(server)
    executor = Executor(
        store=ReplicaStore(state.replica_root),
        runner=ProcessRunner(supervisor=supervisor),
        devices=devices,
        lease_file=state.lease_file,
    )
    agent = Agent(state=state, client=client, devices=devices, executor=executor, settings=settings)
    try:
        node = state.node() or _join(options, agent, client, state, waiter)
        if node is None:
            return 0
        agent.start(node_secret=node["node_secret"], sync_s=node["sync_s"])
        if options.once:
            return 0 if agent.turn_and_log().was_answered else EXIT_REFUSED
        agent.run(waiter)
        return 0
    finally:
        client.close()
        devices.close()
        state.close()


def _join(
    options: argparse.Namespace, agent: Agent, client: ServerClient, state: StateFolder, waiter: Waiter
) -> NodeRecord | None:
    """Try until the server answers; None when told to stop meanwhile."""
    join_token = options.join_token or os.environ.get(JOIN_TOKEN_VARIABLE)
    if not join_token:
        raise UsageError(f"this node has not joined yet: pass --join-token or set {JOIN_TOKEN_VARIABLE}")
    request: JoinRequest = {"join_token": join_token, "name": options.name, "inventory": agent.inventory()}
    backoff = Backoff(first_s=0.5, limit_s=15.0)
    while not waiter.should_stop:
        try:
            answer = _ask_to_join(client, request)
        except (ServerError, MalformedAnswer) as error:
            wait_s = backoff.next_s()
            logger.warning("join: %s; again in %.1f s", error, wait_s)
            waiter.wait(wait_s)
            continue
        node: NodeRecord = {
            "node_id": answer.node_id,
            "node_secret": answer.node_secret,
            "name": options.name,
            "sync_s": answer.sync_s,
            "lease_s": answer.lease_s,
        }
        state.save_node(node)
        logger.info("joined as %s (%s)", options.name, answer.node_id)
        return node
    return None


def _ask_to_join(client: ServerClient, request: JoinRequest) -> JoinAnswer:
    """The refusals that asking again cannot change become JoinRefused."""
    try:
        return client.join(request)
    except NameTaken as error:
        advice = (
            f"a node named {request['name']} has joined already: revoke or retire it, or use another --name"
        )
        raise JoinRefused(f"{advice} ({error})") from error
    except Unauthorized as error:
        raise JoinRefused(f"the join token is not valid (any more): make a new one ({error})") from error
    except RequestRefused as error:
        raise JoinRefused(f"the server does not take this node as it is: {error}") from error


def _server_url(text: str) -> str:
    url = httpx.URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"--server: {text!r} is not like https://yard.example.com")
    if url.scheme == "http" and not is_loopback(url.host):
        logger.warning("--server %s: without https anyone on the way can read this node's secret", text)
    return text.rstrip("/")


def _devices(options: argparse.Namespace) -> DeviceBackend:
    if not options.simulate:
        raise UsageError(
            "this version knows simulated GPUs only: pass --simulate, such as --simulate 8xh100-80g"
        )
    return parse_simulation(options.simulate, options.name)


def _settings(options: argparse.Namespace, devices: DeviceBackend) -> Settings:
    gpu_count = len(devices.gpus())
    settings = Settings(
        hostname=socket.gethostname(),
        advertise_address=options.advertise_address or "127.0.0.1",
        port_range=options.ports,
        cpu_m=options.cpu_m if options.cpu_m is not None else SIMULATED_CPU_M_PER_GPU * gpu_count,
        memory_mib=options.memory_mib
        if options.memory_mib is not None
        else SIMULATED_MEMORY_MIB_PER_GPU * gpu_count,
    )
    if settings.cpu_m <= 0 or settings.memory_mib <= 0:
        raise UsageError("--cpu-m and --memory-mib must be above 0")
    return settings


def entry() -> None:
    sys.exit(main())
