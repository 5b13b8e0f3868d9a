"""A page in a headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FLAGS = (
    "--headless",
    "--no-sandbox",  # which root may not use
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
    "--dump-dom",
)


def opened(page: Path, place: str, profile: Path) -> tuple[str, dict[str, Any]]:
    """Open a page at `#place` with a new profile; return the document, and the report of its tests."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"{page.as_uri()}#{place}"]
    document = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'<pre id="report">(.*?)</pre>', document, re.DOTALL)
    assert found is not None, document[-2000:]
    return document, json.loads(html.unescape(found[1]))
