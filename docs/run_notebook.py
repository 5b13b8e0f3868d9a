"""Runs the notebook and writes what it shows into it: `make notebook`."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"
SECONDS = 600
"""A cell may take."""


def written() -> nbformat.NotebookNode:
    """Return the notebook as it is."""
    return nbformat.read(NOTEBOOK, as_version=4)


def executed() -> nbformat.NotebookNode:
    """Return the notebook with the output of every cell; a cell that fails raises an error."""
    notebook = written()
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, resources=resources, record_timing=False)
        client.execute()
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
