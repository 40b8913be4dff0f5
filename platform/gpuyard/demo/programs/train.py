"""Trains a small network on a two-spirals problem with numpy: logs its loss, writes checkpoints, resumes from one.

    python train.py --seconds 20 --checkpoint-dir DIR

Uses the CPU for the given time. Run again with the same folder it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float64]]
HIDDEN = 64
LEARNING_RATE = 0.05
CHECKPOINT_EVERY_S = 5.0


def spirals(points: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two interleaved spirals: (points, 2) coordinates and (points, 1) labels 0 or 1."""
    rng = np.random.default_rng(seed)
    half = points // 2
    turns = np.sqrt(rng.random(half)) * 3 * np.pi
    arm = np.stack([turns * np.cos(turns), turns * np.sin(turns)], axis=1) / (3 * np.pi)
    inputs = np.concatenate([arm, -arm]) + rng.normal(0, 0.02, (2 * half, 2))
    return inputs, np.repeat([0.0, 1.0], half)[:, None]


def fresh_weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    shapes = {
        "w1": (2, HIDDEN),
        "b1": (HIDDEN,),
        "w2": (HIDDEN, HIDDEN),
        "b2": (HIDDEN,),
        "w3": (HIDDEN, 1),
        "b3": (1,),
    }
    return {name: rng.normal(0, 0.6, shape) for name, shape in shapes.items()}


def step(weights: Weights, inputs: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """One step of gradient descent on the cross-entropy, in place; returns the loss before it."""
    h1 = np.tanh(inputs @ weights["w1"] + weights["b1"])
    h2 = np.tanh(h1 @ weights["w2"] + weights["b2"])
    guess = 1 / (1 + np.exp(-np.clip(h2 @ weights["w3"] + weights["b3"], -30, 30)))
    loss = -np.mean(labels * np.log(guess + 1e-9) + (1 - labels) * np.log(1 - guess + 1e-9))
    d3 = (guess - labels) / len(inputs)
    d2 = (d3 @ weights["w3"].T) * (1 - h2**2)
    d1 = (d2 @ weights["w2"].T) * (1 - h1**2)
    for layer, before, delta in ((3, h2, d3), (2, h1, d2), (1, inputs, d1)):
        weights[f"w{layer}"] -= LEARNING_RATE * before.T @ delta
        weights[f"b{layer}"] -= LEARNING_RATE * delta.sum(axis=0)
    return float(loss)


def save(path: Path, weights: Weights, steps: int) -> None:
    """Writes a checkpoint that is there whole or not at all."""
    draft = path.with_suffix(".part.npz")
    arrays: dict[str, Any] = {"steps": np.array(steps), **weights}
    np.savez(draft, **arrays)
    os.replace(draft, path)


def load(path: Path) -> tuple[Weights, int]:
    with np.load(path) as stored:
        weights = {name: stored[name] for name in stored.files if name != "steps"}
        return weights, int(stored["steps"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = args.checkpoint_dir / "last.npz"
    weights, steps = (load(checkpoint)) if checkpoint.exists() else (fresh_weights(args.seed), 0)
    inputs, labels = spirals(600, args.seed)
    print(f"training on GPUs {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')} from step {steps}", flush=True)
    began = saved = logged = time.monotonic()
    loss = float("nan")
    while time.monotonic() - began < args.seconds:
        loss = step(weights, inputs, labels)
        steps += 1
        now = time.monotonic()
        if now - logged >= 1:
            logged = now
            print(f"step {steps} loss {loss:.4f}", flush=True)
        if now - saved >= CHECKPOINT_EVERY_S:
            saved = now
            save(checkpoint, weights, steps)
            print(f"checkpoint at step {steps}", flush=True)
    save(checkpoint, weights, steps)
    print(f"done: {steps} steps, loss {loss:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
