"""Writes docs/reference/api.md from the docstrings of the public names: `make reference`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")

MODULES = ("quped", "quped.optim", "quped.testing")

HEAD = """# Reference

This page lists the public names of quped with their arguments and defaults.
`make reference` generates it from the docstrings.
[The architecture](../architecture.md#the-algorithm-interface) describes the methods that all algorithms share."""

FORMULA = re.compile(r"[\w^~]+(\([\w, ]*\))? (=|<-|~) ")
"""How a line begins that is a formula and not a sentence."""


def render() -> str:
    """Return the whole page."""
    return "\n\n".join([HEAD, *(part for module in MODULES for part in module_parts(module))]) + "\n"


def module_parts(name: str) -> Iterator[str]:
    """Yield the heading of a module and one section per public name."""
    module = import_module(name)
    yield f"## Module {name}"
    for public in sorted(getattr(module, "__all__", ["check_algorithm"]), key=str.lower):
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"### {public}"
            yield from class_parts(value) if inspect.isclass(value) else function_parts(value.__name__, value)


def function_parts(name: str, function: Any) -> Iterator[str]:
    """Yield the signature and the docstring of a function."""
    yield code(name + signature(function))
    yield from prose(function)


def class_parts(kind: type) -> Iterator[str]:
    """Yield the signature, the docstring, the attributes and the methods of a class."""
    own = vars(kind)
    written_init = not (is_dataclass(kind) or is_protocol(kind) or issubclass(kind, BaseException | dict))
    init = inspect.getattr_static(kind, "__init__")
    if written_init:
        yield code(kind.__name__ + signature(init))
    yield from prose(kind)
    if written_init:
        yield from prose(init)
    if is_dataclass(kind) and fields(kind):
        yield field_table(kind)
    elif documented := attribute_docs(kind):
        yield table(["attribute", "meaning"], [[f"`{name}`", meaning] for name, meaning in documented.items()])
    for name, value in own.items():
        if isinstance(value, property) and not name.startswith("_"):
            yield f"**`{name}`** (property): {' '.join((inspect.getdoc(value) or '').split())}"
    for name, value in own.items():
        if inspect.isfunction(value) and not name.startswith("_") and not hasattr(kind, "server_update"):
            yield from function_parts(f"{kind.__name__}.{name}", value)


def is_protocol(kind: type) -> bool:
    """Say whether a class is an interface."""
    return bool(getattr(kind, "_is_protocol", False))


def field_table(kind: type) -> str:
    """Return the fields of a dataclass as a table; without defaults for a class that has none."""
    types, meanings = attribute_types(kind), attribute_docs(kind)
    rows = [
        [
            f"`{field.name}`",
            f"`{types[field.name]}`",
            default(field),
            field.metadata.get("help") or meanings.get(field.name, ""),
        ]
        for field in fields(kind)
    ]
    header = ["field", "type", "default", "meaning"]
    if not any(row[2] for row in rows):
        header, rows = ["field", "type", "meaning"], [[*row[:2], row[3]] for row in rows]
    return table(header, rows)


def default(field: Field[Any]) -> str:
    """Return the default of a field; nothing if it must be given."""
    if field.default is MISSING and field.default_factory is MISSING:
        return ""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    kind = type(value)
    return f"`{kind.__name__}()`" if is_dataclass(kind) and value == kind() else f"`{value!r}`"


def statements(kind: type) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Yield the statements of a class and its methods, each with the one that follows; first inherited fields."""
    for one in reversed(kind.__mro__):
        if one is not kind and not is_dataclass(one):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield from zip(node.body, [*node.body[1:], None], strict=True)


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the strings below the public attributes of a class and of its instances."""
    docs = {}
    for statement, following in statements(kind):
        target = getattr(statement, "target", None) or next(iter(getattr(statement, "targets", [])), None)
        name = str(getattr(target, "id", getattr(target, "attr", "_")))
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))) if not name.startswith("_"):
                docs[name] = " ".join(text.split())
    return docs


def attribute_types(kind: type) -> dict[str, str]:
    """Return the annotations of a class as they are written."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement, _ in statements(kind)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def signature(function: Any) -> str:
    """Return the arguments of a function with their defaults, without types."""
    parameters = inspect.signature(function).parameters.values()
    untyped = [one.replace(annotation=inspect.Parameter.empty) for one in parameters if one.name != "self"]
    return str(inspect.Signature(untyped))


def prose(documented: Any) -> Iterator[str]:
    """Yield a docstring: formulas as code, arguments as a list. Training options have a table of their own."""
    text = inspect.cleandoc(documented.__doc__ or "").split("\n\nTraining options:")[0]
    for paragraph in filter(None, text.split("\n\n")):
        lines = paragraph.removeprefix("Arguments:\n").splitlines()
        if all(FORMULA.match(line) for line in lines):
            yield code(paragraph)
        elif re.match(r"\w+: [A-Za-z]", lines[0].strip()):
            yield arguments(lines)
        else:
            yield " ".join(line.strip() for line in lines)


def arguments(lines: list[str]) -> str:
    """Return the arguments of a function as a list."""
    items: list[str] = []
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            name, _, meaning = line.partition(": ")
            symbol = not meaning.split()[0].isalpha()  # such as eta_2, whose case matters
            items.append(f"- `{name}`: {meaning if symbol else meaning[0].upper() + meaning[1:]}")
    return "\n".join(items)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return a block of code."""
    return f"```\n{text}\n```"


if __name__ == "__main__":
    PAGE.write_text(render())
