"""Draws where the time of a client's step goes, with and without compiled kernels: docs/step-time.png.

    python benchmarks/where_time_goes.py docs/step-time.png

Each bar is measured in a process of its own, on one thread, with PyTorch's profiler: the time that an operator takes by
itself. What is left of the wall time is Python's.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

KINDS = {
    "convolution, pooling, ReLU": ("ConvPool", "conv", "pool", "relu", "threshold", "clamp"),
    "fully connected layers": ("mm", "Addmm", "linear", "aten::t", "transpose"),
    "quantization": ("gather", "scatter", "softshrink", "sign", "sort", "aten::gt"),
    "losses": ("softmax", "nll", "kl_div", "cross_entropy", "exp", "div", "mean"),
    "batches": ("index", "stack", "randperm"),
}
STEPS = 40


def measure(method: str) -> dict[str, float]:
    """Return milliseconds per step by kind of work, of this process's kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from quped._bench import Load, engine, play
    from quped.algorithms import FedAvg, QuPeD

    torch.set_num_threads(1)
    load = Load(clients=4)
    algorithm, bits = (FedAvg(), 32) if method == "FedAvg" else (QuPeD(), 2)
    computing = engine(algorithm, bits, load, load.data(), 0)
    walls = []
    for _ in range(8):
        began = time.perf_counter()
        play(computing, algorithm, load)
        walls.append(time.perf_counter() - began)
    wall = sorted(walls)[len(walls) // 2] * 1e3 / STEPS
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        play(computing, algorithm, load)
    shares: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = next((kind for kind, words in KINDS.items() if any(w in event.key for w in words)), "other operators")
        shares[kind] = shares.get(kind, 0.0) + event.self_cpu_time_total / 1e3 / STEPS
    shares["Python"] = max(0.0, wall - sum(shares.values()))
    return shares


def main(file: Path) -> None:
    """Measure four bars and draw them."""
    bars = {}
    for method in ("FedAvg", "QuPeD, 2 bits"):
        for switch, words in (("0", "PyTorch alone"), ("1", "with own kernels")):
            environment = {**os.environ, "QUPED_NATIVE": switch}
            command = [sys.executable, __file__, "--measure", method]
            told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            bars[f"{method}\n{words}"] = json.loads(told.splitlines()[-1])

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(10, 3.8))
    colors = ["#0b5394", "#6fa8dc", "#e69138", "#93c47d", "#a64d79", "#999999", "#dddddd"]
    left = dict.fromkeys(bars, 0.0)
    for kind, color in zip((*KINDS, "other operators", "Python"), colors, strict=True):
        for label, shares in bars.items():
            axis.barh(label, shares.get(kind, 0.0), left=left[label], color=color, label=kind)
            left[label] += shares.get(kind, 0.0)
    for label, total in left.items():
        axis.text(total, label, f" {total:.1f} ms", va="center")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axis.legend(unique.values(), unique.keys(), fontsize=8, loc="upper right")
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(left.values()))
    axis.set_xlabel("milliseconds of one client's step (CNN1, 32x32 images, batch of 25, one thread)")
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(Path(sys.argv[1]))
