"""Documents and files with numbers made from the records."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from quped.errors import InvalidValueError, RunError
from quped.paper import claims, compare, summary
from quped.paper.curves import draw
from quped.paper.table import Table
from quped.records import write_bytes

BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
CLAIMS, SUMMARY = "claims", "summary"


def fill(text: str, tables: Iterable[Table], folder: Path) -> str:
    """Return a document with each block between `<!-- results: TABLE -->` and `<!-- end -->` made from the records.

    Every table with records must have a block. In the place of a table, `claims` and `summary` stand for these.
    """
    tables = list(tables)
    blocks = [match[2] for match in BLOCK.finditer(text)]
    if unknown := sorted(set(blocks) - {table.name for table in tables} - {CLAIMS, SUMMARY}):
        raise RunError(f"The document asks for the results of a table '{unknown[0]}', which does not exist.")
    if text.count("<!-- results: ") != len(blocks):
        raise RunError("A block of results in the document has no <!-- end -->: each needs its own.")
    comparisons = {table.name: compare.compare(table, folder) for table in tables}
    content = {name: compare.markdown(comparison) for name, comparison in comparisons.items()}
    if not any(content.values()):
        raise RunError(f"There is no record of any table in {folder}: name the folder of the records with --out.")
    if missing := [name for name, table in content.items() if table and name not in blocks]:
        raise RunError(
            f"There are records of {', '.join(missing)}, but the document has no place for them: for each, add the "
            f"lines <!-- results: {missing[0]} --> and <!-- end -->."
        )
    if CLAIMS in blocks:
        content[CLAIMS] = claims.markdown(claims.findings(tables, folder))
    content[SUMMARY] = summary.markdown(summary.summarize(comparisons.values()))
    return BLOCK.sub(lambda match: f"{match[1]}{content[match[2]]}\n{match[3]}", text)


def check(document: Path, tables: Iterable[Table], folder: Path) -> list[str]:
    """Return how a document, and the files of tables beside the records, differ from the records."""
    tables = list(tables)
    text = read(document)
    expected = fill(text, tables, folder)
    differences = list(
        difflib.unified_diff(text.splitlines(), expected.splitlines(), str(document), "records", lineterm="", n=0)
    )
    for table in tables:
        for path, content in table_files(table, compare.compare(table, folder), folder).items():
            if not path.exists() or path.read_text() != content:
                differences.append(f"{path} differs from the records")
    return differences


def update(document: Path, tables: Iterable[Table], folder: Path) -> None:
    """Write a document, and the files of tables beside the records, from the records."""
    tables = list(tables)
    text = fill(read(document), tables, folder)
    comparisons = [compare.compare(table, folder) for table in tables]
    for table, comparison in zip(tables, comparisons, strict=True):
        write_table(table, comparison, folder)
    if pairs := summary.summarize(comparisons):
        summary.draw(pairs, folder / f"{SUMMARY}.png")
    write_bytes(document, text.encode())


def read(document: Path) -> str:
    """Return the text of a document."""
    try:
        return document.read_text()
    except OSError as error:
        raise InvalidValueError(
            f"The document {document} cannot be read: {error.strerror}. Name another with --docs."
        ) from error


def write_table(table: Table, comparison: compare.Comparison, folder: Path, epochs: int | None = None) -> list[Path]:
    """Write a table as Markdown, JSON and a picture of its curves; return the files. Without records there are none."""
    files = table_files(table, comparison, folder, epochs)
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, text.encode())
    if not files:
        return []
    picture = folder / table.name / f"curves{suffix(epochs)}.png"
    draw(table.title, comparison, picture)
    return [*files, picture]


def table_files(
    table: Table, comparison: compare.Comparison, folder: Path, epochs: int | None = None
) -> dict[Path, str]:
    """Return the text files of a table."""
    if not comparison:
        return {}
    path = folder / table.name / f"table{suffix(epochs)}.md"
    values = json.dumps(compare.values(table, comparison), indent=2)
    return {path: f"# {table.title}\n\n{compare.markdown(comparison)}\n", path.with_suffix(".json"): f"{values}\n"}


def suffix(epochs: int | None) -> str:
    """Return the part of a file's name that tells the length of shortened runs."""
    return "" if epochs is None else f"-epochs-{epochs}"
