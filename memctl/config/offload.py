"""The place of offloaded contents, and the rule of what is large, from ``[offload]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from memctl.config import Config
from memctl.errors import UsageError
from memctl.text.toml import Table, Text, read_table
from memctl.text.values import data_size

_REFERENCE = 1000
"""More bytes than a reference to a blob has in any message."""


class OffloadTable(Table, kw_only=True, frozen=True):
    """``[offload]`` as the file has it; sizes are as a user writes them."""

    to: Text = ""
    url_prefix: Text = ""
    larger: Text = "64kB"
    keep: Text = "1kB"


class OffloadSettings(Struct, frozen=True):
    """The folder or URL of the blobs, and the rule of what is large.

    ``to`` is empty if none is configured.  ``larger`` and ``keep`` are sizes in bytes.
    """

    to: str
    url_prefix: str
    larger: int
    keep: int


def read_offload(
    config: Config,
    own: Mapping[str, str | None] | None = None,
    name_of: Callable[[str], str] = lambda key: key,
) -> OffloadSettings:
    """Return the settings of ``[offload]``, with ``own`` values in place of those of the file.

    ``own`` has values by key, of options or of a policy; None leaves the value of the file.
    ``name_of`` returns the name of such a value for errors: ``--larger`` for ``larger``.

    Raises:
        UsageError: the table or a value is not valid, or ``larger`` is too small.
    """
    table = read_table(config.path, "offload", config.offload, OffloadTable)
    given = {key: value for key, value in (own or {}).items() if value is not None}

    def size(key: str) -> tuple[str, int]:
        name = name_of(key) if key in given else f"{config.path}: offload.{key}"
        return name, data_size(name, given.get(key, getattr(table, key)))

    (name, larger), (_, keep) = size("larger"), size("keep")
    if larger < keep + _REFERENCE:
        raise UsageError(
            f"{name}: {larger:,} bytes are too few",
            f"a text keeps {keep:,} bytes, and the reference takes up to {_REFERENCE:,}",
        )
    prefix = given.get("url_prefix", table.url_prefix)
    if prefix and not prefix.endswith(("/", "=")):
        prefix += "/"  # users forget the slash
    return OffloadSettings(given.get("to", table.to), prefix, larger, keep)
