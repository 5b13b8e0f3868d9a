"""The share of clients that a method hurts, from what `result.json` says of it and of others on the same clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quped._evaluate import hurt

REFERENCES = "local", "fedavg"
"""The methods that a client could have had instead: training alone, and one model for all."""


def share_below(result: dict[str, Any], results: Sequence[dict[str, Any]], reference: str) -> float | None:
    """Return the share of clients that a reference among other results serves better; None if it is not among them.

    Local training is compared at the same bits only.
    """
    for other in results:
        if other["algorithm"] == reference and other is not result:
            mine, theirs = ({client["name"]: client for client in one["clients"]} for one in (result, other))
            names = [
                name for name in mine if reference != "local" or mine[name]["bits"] == theirs.get(name, {}).get("bits")
            ]
            verdicts = hurt(
                {name: mine[name]["accuracy"] for name in names if mine[name]["accuracy"] is not None},
                other["accuracy"]["per_client"],
                {name: mine[name].get("test_samples", 0) for name in names},
            )
            return float(np.mean(list(verdicts.values()))) if verdicts else None
    return None
