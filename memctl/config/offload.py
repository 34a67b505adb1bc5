"""Where offloaded contents go, and which contents are large: ``[offload]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from memctl.config import Config, refuse_unknown
from memctl.errors import UsageError
from memctl.values import data_size

_PLACE = "offload"
_KEYS = ("to", "url_prefix", "larger", "keep")
LARGER = 64 * 1000
KEEP = 1000
"""The defaults in bytes of ``larger`` and ``keep``."""


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """The folder or URL of the blobs, and which contents are moved there.

    ``to`` is empty if none is configured.  ``larger`` and ``keep`` are sizes in bytes.
    """

    to: str = ""
    url_prefix: str = ""
    larger: int = LARGER
    keep: int = KEEP


def read_offload(config: Config) -> OffloadSettings:
    """Return the settings of ``[offload]``, with defaults for what the file does not set.

    Raises:
        UsageError: the table is not valid.
    """
    path, table = config.path, config.offload
    refuse_unknown(path, f"{_PLACE}.", table, _KEYS)
    for key in _KEYS:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{path}: {_PLACE}.{key} is not a text", f'write {key} = "..."')
    return OffloadSettings(
        table.get("to", ""),
        url_prefix(table.get("url_prefix", "")),
        data_size(f"{_PLACE}.larger", table["larger"]) if "larger" in table else LARGER,
        data_size(f"{_PLACE}.keep", table["keep"]) if "keep" in table else KEEP,
    )


def url_prefix(text: str) -> str:
    """Return the beginning of URLs, with the slash at its end that users forget."""
    return text if not text or text.endswith(("/", "=")) else f"{text}/"
