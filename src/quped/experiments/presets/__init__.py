"""The experiments that come with the package: the TOML files of this folder."""

from pathlib import Path

from quped.errors import InvalidValueError, did_you_mean

FOLDER = Path(__file__).parent


def presets() -> dict[str, Path]:
    """Return every preset's file by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find(name: str) -> Path:
    """Return the file of a preset, or of a path to a TOML file."""
    known = presets()
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise InvalidValueError(f"There is no experiment file {path}.")
        return path
    raise InvalidValueError(f"There is no preset '{name}', and a file must end in .toml. {did_you_mean(name, known)}")
