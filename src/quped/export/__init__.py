"""Models as files."""

from quped.export.packed import PackedModel, PackedTensor, from_bytes, load, read, save, to_bytes, write_file

__all__ = ["PackedModel", "PackedTensor", "from_bytes", "load", "read", "save", "to_bytes", "write_file"]
