"""The configuration that ``memctl config init`` writes."""

from __future__ import annotations

import os
import tempfile
from importlib.resources import files
from pathlib import Path

from memctl.errors import Unavailable, UsageError


def sample() -> str:
    """Everything that can be configured, commented out."""
    return files("memctl.config").joinpath("sample.toml").read_text("utf-8")


def write_sample(path: Path, *, force: bool) -> None:
    """Writes it to a file that only its owner may read, whole or not at all.

    Raises:
        UsageError: there is a file, and ``force`` is not given.
        Unavailable: it cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file: --config FILE")
    if path.exists() and not force:
        raise UsageError(f"the configuration {path} exists", "--force replaces it")
    # A link, as people have who keep such files elsewhere, stays one.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".memctl-", dir=target.parent)  # of mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(sample())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}", "--config names another"
        ) from error
