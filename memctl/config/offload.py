"""The place of offloaded contents, and the rule of what is large, from ``[offload]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memctl.config import Config
from memctl.config.checks import refuse_unknown
from memctl.errors import UsageError
from memctl.text.values import data_size

KEYS = ("to", "url_prefix", "larger", "keep")
_PLACE = "offload"
_DEFAULTS = {"larger": "64kB", "keep": "1kB"}
"""The defaults of ``ops.offload.slim.Rule``, as a user writes sizes."""
_REFERENCE = 1000
"""More bytes than a reference to a blob has in any message."""


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """The folder or URL of the blobs, and the rule of what is large.

    ``to`` is empty if none is configured.  ``larger`` and ``keep`` are sizes in bytes.
    """

    to: str
    url_prefix: str
    larger: int
    keep: int


def read_offload(
    config: Config,
    own: Mapping[str, str] | None = None,
    name_of: Callable[[str], str] = lambda key: key,
) -> OffloadSettings:
    """Return the settings of ``[offload]``, with ``own`` values in place of those of the file.

    ``own`` has values by key, of options or of a policy.  ``name_of`` returns the name of such a
    value for errors: ``--larger`` for ``larger``.

    Raises:
        UsageError: the table or a value is not valid, or ``larger`` is too small.
    """
    path, table = config.path, config.offload
    refuse_unknown(path, f"{_PLACE}.", table, KEYS)
    for key in KEYS:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{path}: {_PLACE}.{key} is not a text", f'write {key} = "..."')
    own = own or {}
    found = {**_DEFAULTS, **table, **own}
    names = {key: name_of(key) if key in own else f"{_PLACE}.{key}" for key in KEYS}
    larger, keep = (data_size(names[key], found[key]) for key in ("larger", "keep"))
    if larger < keep + _REFERENCE:
        raise UsageError(
            f"{names['larger']}: {larger:,} bytes are too few",
            f"a text keeps {keep:,} bytes, and the reference takes up to {_REFERENCE:,}",
        )
    prefix = found.get("url_prefix", "")
    if prefix and not prefix.endswith(("/", "=")):
        prefix += "/"  # users forget the slash
    return OffloadSettings(found.get("to", ""), prefix, larger, keep)
