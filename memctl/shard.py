"""A shard: one of N divisions of all memories, by a hash of the session that never changes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from memctl.errors import UsageError
from memctl.model import MemoryKey

MOST = 4096
"""The largest number of shards."""
_TEXT = re.compile(r"(\d+)/(\d+)")


@lru_cache(maxsize=65_536)
def shard_hash(name: str) -> str:
    """Return the hash of a name: the first 8 hexadecimal digits of the MD5 of its UTF-8.

    Databases compute the same in SQL.  The hash stays the same in all versions of memctl.
    """
    from hashlib import md5  # OpenSSL, which most commands do without

    return md5(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:8]


class Shard(NamedTuple):
    """Shard ``number`` of so many, numbered from 0.

    ::

        Shard.parse("3/16").has(MemoryKey("ada", "trip"))

    Every memory is in exactly one of the shards, and all memories of a session are in the same
    shard.  Shard 3/16 holds what 6/32 and 7/32 hold together.

    In a run on a fleet of so many ``stores``, the shards of the first store come first: of 16
    shards on 4 stores, 5/16 holds of the second store what 1/4 holds.
    """

    number: int
    of: int
    stores: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that a text such as ``3/16`` names.

        Raises:
            UsageError: the text names no shard.
        """
        found = _TEXT.fullmatch(text.strip())
        if not found:
            raise UsageError(
                f"--shard {text!r} is not a shard", "write K/N, such as 0/16 for the first of 16"
            )
        number, of = int(found[1]), int(found[2])
        if not 1 <= of <= MOST:
            raise UsageError(
                f"--shard {text!r}: N is from 1 to {MOST:,}", "divide the run into fewer parts"
            )
        if number >= of:
            raise UsageError(
                f"--shard {text!r}: K must be below N",
                f"parts are numbered from 0: the last is {of - 1}/{of}",
            )
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def file_name(self) -> str:
        """The shard in the name of a file, such as ``0003-of-0016``: the names sort in order."""
        return f"{self.number:04}-of-{self.of:04}"

    @property
    def store(self) -> int:
        """The index of the store of the shard in the fleet."""
        return self.number // (self.of // self.stores)

    @property
    def leads(self) -> bool:
        """True for the first shard of a store."""
        return self.number % (self.of // self.stores) == 0

    @property
    def low(self) -> str:
        """The least hash in the shard."""
        return _bounds(self)[0]

    @property
    def high(self) -> str:
        """The least hash above the shard; for the last shard ``g``, which is above all hashes."""
        return _bounds(self)[1]

    def has_name(self, name: str) -> bool:
        """Return whether a session with this name is in the shard."""
        low, high = _bounds(self)
        return low <= shard_hash(name) < high

    def has(self, key: MemoryKey) -> bool:
        """Return whether a memory is in the shard.

        The session decides; for a memory without a session, the user.
        """
        return self.has_name(key.session or key.user)


@lru_cache
def _bounds(shard: Shard) -> tuple[str, str]:
    of = shard.of // shard.stores
    number = shard.number % of

    def bound(number: int) -> str:
        return f"{-(-(number << 32) // of):08x}"

    return bound(number), "g" if number + 1 == of else bound(number + 1)
