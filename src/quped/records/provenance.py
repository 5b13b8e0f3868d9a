"""Which code computed a result."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def revision() -> str | None:
    """Return the commit of this code, with a plus if the code differs from it; None if it is not known."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    git = ("git", "-C", str(root))
    try:
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], capture_output=True).returncode
    except OSError:  # no git here
        return None
    if head.returncode or changed not in (0, 1):  # git was stopped, or cannot read the checkout
        return None
    return head.stdout.strip() + "+" * changed


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    packages = {name: metadata.version(name) for name in ("quped", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}
