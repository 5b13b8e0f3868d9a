"""Where things are kept that can be made or fetched again: data sets, compiled kernels."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return `QUPED_CACHE`, or else the user's cache folder of this platform."""
    named = os.environ.get("QUPED_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("quped")
