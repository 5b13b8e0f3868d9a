"""What a run leaves on disk: records, checkpoints, and where they come from."""

from quped.records.checkpoints import Checkpoints
from quped.records.files import exclusive, flatten, in_use, plain, read_json, write_bytes, write_json
from quped.records.provenance import revision, versions
from quped.records.run import (
    CHECKPOINTS,
    CONFIG,
    CURVES,
    DEFAULT_ALGORITHM,
    MODELS,
    REPORT,
    RESULT,
    RunRecord,
    compared_folders,
    distinct,
    failure,
    has_failed,
    holds_run,
    refuse_link,
)

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "CURVES",
    "DEFAULT_ALGORITHM",
    "MODELS",
    "REPORT",
    "RESULT",
    "Checkpoints",
    "RunRecord",
    "compared_folders",
    "distinct",
    "exclusive",
    "failure",
    "flatten",
    "has_failed",
    "holds_run",
    "in_use",
    "plain",
    "read_json",
    "refuse_link",
    "revision",
    "versions",
    "write_bytes",
    "write_json",
]
