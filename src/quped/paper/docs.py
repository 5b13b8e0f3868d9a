"""Documents with tables that are made from the records."""

import re
from pathlib import Path

from quped.errors import RunError
from quped.paper import claims
from quped.paper.compare import markdown, rows
from quped.paper.table import tables

BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
CLAIMS = "claims"


def document(text: str, folder: Path) -> str:
    """Return a document with each block between `<!-- results: TABLE -->` and `<!-- end -->` made from the records.

    Every table with records must have one. `claims` in the place of a table is what all of them say of the paper.
    """
    blocks = [match[2] for match in BLOCK.finditer(text)]
    if unknown := sorted(set(blocks) - tables().keys() - {CLAIMS}):
        raise RunError(f"The document asks for the results of a table '{unknown[0]}', which does not exist.")
    if text.count("<!-- results: ") != len(blocks):
        raise RunError("A block of results in the document has no <!-- end -->: each needs its own.")
    made = {name: markdown(rows(table, folder)) for name, table in tables().items()}
    if not any(made.values()):
        raise RunError(f"There is no record of any table in {folder}: name the folder of the records with --out.")
    if missing := [name for name, content in made.items() if content and name not in blocks]:
        raise RunError(
            f"There are records of {', '.join(missing)}, but the document has no place for them: for each, add the "
            f"lines <!-- results: {missing[0]} --> and <!-- end -->."
        )
    if CLAIMS in blocks:
        made[CLAIMS] = claims.markdown(claims.known(folder))
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", text)
