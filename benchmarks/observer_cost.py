"""What observing a PyTorch training costs: by the observer's own account, and beside the same training without it.

    python benchmarks/observer_cost.py [steps] [pairs]

Processes with and without the observer train in turns, so that whatever else the machine does falls on both. Prints for
each model the windows, their cost by the observer's own account as a share of the time, and the time of all steps
observed over plain: the median of the pairs, and their range.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from hpcml_train.torch.observer import Observer

Model = Callable[[], tuple[nn.Module, torch.Tensor]]


class Told:
    """Keeps the events of an observer."""

    def __init__(self) -> None:
        self.windows: list[dict[str, object]] = []

    def event(self, name: str, /, **details: object) -> None:
        """Take an event."""
        if name == "precision_observed":
            self.windows.append(details)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), torch.randn(64, 256)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(16, 3, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 64, 128)


MODELS: dict[str, tuple[Model, int]] = {"mlp": (mlp, 8), "cnn": (cnn, 1), "transformer": (transformer, 1)}  # x steps


def train(name: str, steps: int, *, is_observed: bool) -> dict[str, float]:
    """Train in this process; return its seconds, the median step in ms, and what the observer says of itself."""
    torch.set_num_threads(1)
    model, x = MODELS[name][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    told = Told()
    observer = Observer(told, how="client")
    if is_observed:
        observer.install(is_hooked=True)
    times = []
    began = time.perf_counter()
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    observer.close()
    spent = [float(str(window["seconds"])) for window in told.windows]
    return {
        "seconds": time.perf_counter() - began,
        "step_ms": statistics.median(times) * 1e3,
        "windows": len(spent),
        "first_ms": spent[0] * 1e3 if spent else 0.0,
        "spent_s": sum(spent),
    }


def measure(name: str, steps: int, pairs: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"plain": [], "observed": []}
    for _ in range(pairs):
        for kind, of_kind in found.items():
            words = [sys.executable, __file__, "train", name, str(steps), kind]
            of_kind.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    seen = found["observed"]
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(found["plain"], seen, strict=True)]
    print(
        f"{name}: {steps} steps of {statistics.median(one['step_ms'] for one in found['plain']):.2f} ms, "
        f"{seen[0]['windows']:.0f} windows; first {statistics.median(one['first_ms'] for one in seen):.1f} ms, all "
        f"{100 * statistics.median(one['spent_s'] / one['seconds'] for one in seen):.2f} % of the time by its own "
        f"account; observed over plain {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        print(json.dumps(train(sys.argv[2], int(sys.argv[3]), is_observed=sys.argv[4] == "observed")))
    else:
        steps, pairs = (int(word) for word in (*sys.argv[1:], *("4000", "5")[len(sys.argv) - 1 :]))
        for model, (_, times) in MODELS.items():
            measure(model, steps * times, pairs)
