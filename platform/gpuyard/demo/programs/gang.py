"""Data-parallel training over the ranks of a gang: each fits its part of the data, rank 0 averages the gradients.

The ranks find one another only through what the platform gives them: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
MEET_WITHIN_S = 60.0
DIMENSIONS = 256


def meet(rank: int, world_size: int, address: str, port: int) -> list[socket.socket]:
    """Connects the ranks in a star: rank 0 gets one socket for each other rank, the others get one to rank 0."""
    if rank == 0:
        with socket.create_server((address, port)) as server:
            server.settimeout(MEET_WITHIN_S)
            return [server.accept()[0] for _ in range(world_size - 1)]
    deadline = time.monotonic() + MEET_WITHIN_S
    while True:
        try:
            return [socket.create_connection((address, port), timeout=MEET_WITHIN_S)]
        except ConnectionRefusedError:  # rank 0 is not there yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def send(peer: socket.socket, vector: Vector) -> None:
    data = vector.tobytes()
    peer.sendall(struct.pack("!I", len(data)) + data)


def receive(peer: socket.socket) -> Vector:
    (size,) = struct.unpack("!I", _exactly(peer, 4))
    return np.frombuffer(_exactly(peer, size), dtype=np.float64)


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            raise ConnectionError("another rank has gone")
        parts += part
    return bytes(parts)


def averager(rank: int, peers: list[socket.socket]) -> Callable[[Vector], Vector]:
    """An all-reduce: every rank calls it with its gradient and gets the mean of all."""

    def average(own: Vector) -> Vector:
        if rank == 0:
            mean = (own + sum(receive(peer) for peer in peers)) / (len(peers) + 1)
            for peer in peers:
                send(peer, mean)
            return mean
        send(peers[0], own)
        return receive(peers[0])

    return average


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause-s", type=float, default=0.02)
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    print(f"rank {rank} of {world_size} meets at {address}:{port}", flush=True)
    average = averager(rank, meet(rank, world_size, address, port))
    print(f"rank {rank}: all {world_size} ranks are here", flush=True)

    truth = np.random.default_rng(1).normal(size=DIMENSIONS)
    own = np.random.default_rng(100 + rank)
    inputs = own.normal(size=(1000, DIMENSIONS))  # (samples, dimensions)
    labels = inputs @ truth
    weights = np.zeros(DIMENSIONS)
    for step in range(1, args.steps + 1):
        error = inputs @ weights - labels
        weights = weights - 0.05 * average(inputs.T @ error / len(inputs))
        if step % 50 == 0 or step == args.steps:
            print(f"rank {rank} step {step} loss {float(np.mean(error**2)):.6f}", flush=True)
        time.sleep(args.pause_s)
    print(f"rank {rank} done, distance to the truth {float(np.linalg.norm(weights - truth)):.6f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
