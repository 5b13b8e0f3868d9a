"""The folder tree is the architecture: who may import whom."""

import ast
from pathlib import Path

import quped

ROOT = Path(quped.__file__).parent
EVERYWHERE = {"typing", "tree", "errors", "rng"}
ALLOWED = {
    "typing": set(),
    "errors": set(),
    "rng": set(),
    "tree": {"typing"},
    "cache": set(),
    "entering_vmap": set(),
    "quant": {"native", "entering_vmap"},
    "losses": set(),
    "native": {"cache", "entering_vmap"},
    "models": {"native"},
    "data": {"cache"},
    "runs": set(),
    "evaluate": {"data"},
    "centralized": {"data", "evaluate", "models", "quant", "runs"},
    "algorithms": {"quant", "losses", "entering_vmap"},
    "engines": {"algorithms", "data", "evaluate", "native", "runs", "entering_vmap"},
    "fit": {"models", "runs"},
    "admission": {"algorithms", "data", "models", "quant"},
    "federation": {"admission", "algorithms", "data", "engines", "fit", "models", "quant", "runs"},
    "experiments": {"admission", "algorithms", "centralized", "data", "federation", "fit", "models", "quant", "runs"},
    "bench": {"algorithms", "data", "engines", "models"},
    "report": {"algorithms", "experiments", "runs"},
    "cli": {"algorithms", "bench", "cache", "centralized", "data", "experiments", "fit", "report", "runs"},
    "__main__": {"cli"},
}
ONLY_IN: dict[str, set[str]] = {
    "sklearn": {"data"},
    "pydantic": {"experiments"},
    "typer": {"cli"},
    "rich": {"cli", "data"},
}


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names = {f"quped.{alias.name}" for alias in node.names} if node.module == "quped" else {node.module}
            found |= names
    return found


def files() -> list[Path]:
    """Return every source file but the package's own front."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def test_every_part_has_a_rule() -> None:
    """A new part of the package needs a line above."""
    assert {part_of(path) for path in files()} == set(ALLOWED)
    assert len(files()) > 30


def test_no_import_against_the_arrows() -> None:
    """Every import of a file is allowed to its part."""
    wrong = []
    for path in files():
        part = part_of(path)
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "quped" and rest and rest[0] not in ALLOWED[part] | EVERYWHERE | {part}:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            if part not in ONLY_IN.get(top, {part}):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}, which only {ONLY_IN[top]} may")
    assert not wrong, "\n".join(wrong)


def test_no_arrow_that_nobody_uses() -> None:
    """What a part may import, one of its files does."""
    for part, allowed in ALLOWED.items():
        names = (name.split(".") for path in files() if part_of(path) == part for name in imports(path))
        used = {name[1] for name in names if name[0] == "quped" and len(name) > 1}
        assert allowed <= used, f"{part} does not need {sorted(allowed - used)}"


def test_algorithms_draw_no_random_numbers_and_touch_no_files() -> None:
    """An algorithm is pure: the engine gives it its batches, and keeps its state."""
    banned = {"random", "os", "pathlib", "io", "numpy", "time", "quped._rng"}
    for path in (ROOT / "algorithms").glob("*.py"):
        assert not imports(path) & banned, path
        assert len(path.read_text().splitlines()) <= 260, f"{path} has outgrown a reader's patience"
