"""Sizes of exported files, each verified on real samples: CNN1 for MNIST at 2 bits, ResNet-20 at 1 and 2 bits.

Run with: python benchmarks/exports.py [--json]
"""

import argparse
import json
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn

from quped import Client, Federation, Local
from quped._rng import torch_seeded
from quped.data.datasets import DATASETS
from quped.export import PackedModel
from quped.export.c import find_compiler
from quped.export.onnx import write_onnx
from quped.models import build, quantizable
from quped.quant import Codebook, nearest, place


def flash(file: Path) -> int:
    """Return the bytes of code and constants that a C file becomes with -Os: all sections but unwinding tables."""
    made = file.with_suffix(".o")
    subprocess.run([*(find_compiler() or ["cc"]), "-std=c99", "-Os", "-c", file, "-o", made], check=True)
    listed = subprocess.run(["size", "-A", made], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines() if line.startswith((".text", ".rodata", ".data"))]
    return sum(int(row[1]) for row in rows)


def mnist(folder: Path) -> dict[str, int]:
    """Train CNN1 with 2-bit weights for four epochs, and export it."""
    data = DATASETS["mnist"]()
    client = Client("phone", data.train, data.test, partial(build, "cnn1", data.input_shape, data.classes), bits=2)
    fit = Federation([client], Local()).fit(epochs=4, batch_size=64, lr=0.05, workers=0)
    print(f"CNN1, MNIST, 2 bits: accuracy {fit.accuracy['phone']:.1%}")
    print("  C    ", fit.export_c("phone", folder / "phone.c"))
    print("  page ", fit.export_html("phone", folder / "phone.html", data.class_names))
    print("  ONNX ", fit.export_onnx("phone", folder / "phone.onnx"))
    sizes = {kind: (folder / f"phone.{kind}").stat().st_size for kind in ("html", "onnx")}
    return {"cnn1-2bit-flash": flash(folder / "phone.c"), **{f"cnn1-2bit-{kind}": size for kind, size in sizes.items()}}


def resnet(bits: int, folder: Path) -> int:
    """Export a ResNet-20 whose weights are rounded to quantiles; return the bytes of its ONNX file."""
    with torch_seeded(0, "resnet"), torch.no_grad():
        module, images = build("resnet20", (3, 32, 32), 10), torch.randn(64, 3, 32, 32)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.uniform_(0.5, 1.5)
                part.bias.normal_()
        module.train()(images)
        books = {}
        for name in quantizable(module.eval()):
            weight = module.get_parameter(name)
            centers = torch.quantile(weight.reshape(1, -1), (torch.arange(2**bits) + 0.5) / 2**bits, dim=1).T
            books[name] = Codebook(centers.contiguous(), nearest(weight, centers))
            weight.copy_(place(*books[name], weight.shape))
    path = folder / "resnet.onnx"
    print(f"ResNet-20, {bits} bit:", write_onnx(module, PackedModel.of(module, books), (images,), path))
    return path.stat().st_size


def main() -> None:
    """Export everything, and print the bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the sizes as JSON at the end")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as scratch:
        sizes = mnist(Path(scratch))
        sizes |= {f"resnet20-{bits}bit-onnx": resnet(bits, Path(scratch)) for bits in (1, 2)}
    if as_json:
        print(json.dumps(sizes))
    else:
        for name, size in sizes.items():
            print(f"{name:<22}{size:>8,} bytes")


if __name__ == "__main__":
    main()
