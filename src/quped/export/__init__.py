"""Models as files."""

from quped.export.packed import (
    SUFFIX,
    PackedModel,
    PackedTensor,
    from_bytes,
    load,
    most_file_bytes,
    read,
    save,
    to_bytes,
    write_file,
)

__all__ = [
    "SUFFIX",
    "PackedModel",
    "PackedTensor",
    "from_bytes",
    "load",
    "most_file_bytes",
    "read",
    "save",
    "to_bytes",
    "write_file",
]
