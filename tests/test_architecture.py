"""The folder tree is the architecture: arrows point downward only."""

import ast
from pathlib import Path

import pytest

import quped

ROOT = Path(quped.__file__).parent

LAYERS = (
    {"typing", "errors", "_rng", "_cache", "_transform", "_losses", "_files", "_computed", "_digest", "_extras"},
    {"_tree", "_native"},
    {"quant"},
    {"models", "data"},
    {"_evaluate", "algorithms"},
    {"optim", "records"},
    {"export"},
    {"client", "result"},
    {"simulation"},
    {"progress", "observers", "federation", "tuning"},
    {"testing", "_bench", "_bench_files", "_bench_networks", "report"},
    {"experiments"},
    {"paper", "flower"},
    {"cli"},
    {"__main__"},
)
"""From the bottom to the top. A part imports from lower layers, and from its own."""

ONLY_IN = {
    "sklearn": {"data"},
    "requests": {"data"},
    "PIL": {"data"},
    "pydantic": {"experiments", "paper"},
    "tomli_w": {"experiments", "report"},
    "typer": {"cli"},
    "rich": {"cli", "progress", "report"},
    "matplotlib": {"report", "paper"},
    "onnx": {"export"},
    "onnxruntime": {"export"},
    "flwr": {"flower"},
    "cryptography": {"flower"},
    "ray": {"simulation"},
    "mlflow": {"observers"},
    "wandb": {"observers"},
    "pandas": {"result"},
}
"""Packages that come with an extra, and the parts that may import them."""

HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            parts = {f"quped.{alias.name}" for alias in node.names if f"{alias.name}" in HEIGHT}
            names |= parts if node.module == "quped" else {node.module}
    return names


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def test_every_part_has_a_layer() -> None:
    assert {part_of(path) for path in FILES} <= set(HEIGHT)
    assert len(FILES) > 60


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path: Path) -> None:
    part = part_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "quped" and rest:
            assert HEIGHT[rest[0]] <= HEIGHT[part], f"{part} is below {rest[0]}"
        assert part in ONLY_IN.get(top, {part}), f"only {ONLY_IN.get(top)} may import {top}"


def test_one_file_imports_ray() -> None:
    importing = [path.name for path in FILES if any(name.split(".")[0] == "ray" for name in imports(path))]
    assert importing == ["ray.py"]


def test_algorithms_draw_no_random_numbers_and_touch_no_files() -> None:
    """An algorithm is pure: the engine gives it its batches, and keeps its state."""
    banned = {"random", "os", "pathlib", "io", "numpy", "time", "quped._rng"}
    for path in (ROOT / "algorithms").glob("*.py"):
        assert not imports(path) & banned, path


def test_the_front_door_is_small() -> None:
    for name in ("__init__", "client", "federation", "result", "errors"):
        assert len((ROOT / f"{name}.py").read_text().splitlines()) <= 230, name
