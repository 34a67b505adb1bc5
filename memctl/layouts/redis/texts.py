"""The texts in the keys of Redis, given to a rewriter and replaced key by key.

Each key is read again under WATCH, and changed in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import Command, Pipeline
from memctl.engines.redis.text import decode
from memctl.location import visible
from memctl.storekit.binary import rewrite_bytes
from memctl.storekit.texts import (
    CHANGED_MEANWHILE,
    IS_NAME,
    Rewriter,
    TextResult,
)

_ATTEMPTS = 5
_READ_AHEAD = 100
"""The number of keys that are read at once."""
_READS = {
    b"string": (b"GET",),
    b"hash": (b"HGETALL",),
    b"list": (b"LRANGE", b"0", b"-1"),
    b"set": (b"SMEMBERS",),
    b"zset": (b"ZRANGE", b"0", b"-1"),
}
"""The commands that read a whole key of a type, without the key."""

Also = Callable[[bytes], Iterable[Command]]
"""Returns further commands for the transaction that changes a key."""


class _Part(NamedTuple):
    """A text of a key; ``change`` returns the command that stores a new text."""

    place: str
    text: bytes
    change: Callable[[bytes], Command]
    field: str = ""


class KeyTexts:
    """The texts in keys of Redis.  All methods block: call them in a thread."""

    def __init__(
        self, pipeline: Pipeline, rewriter: Rewriter, types: Collection[bytes], also: Also
    ) -> None:
        """``types`` are the types of keys with texts; the other types have names alone."""
        self._pipeline = pipeline
        self._rewriter = rewriter
        self._types = types
        self._also = also

    def rewrite(self, keys: Iterable[bytes], *, writes: bool) -> Iterator[TextResult]:
        """Rewrite keys, or, unless ``writes``, tell what a rewrite would do.

        Raises:
            MemctlError: as ``Pipeline.stream`` and ``Pipeline.commit``.
        """
        source = iter(keys)
        while some := list(islice(source, _READ_AHEAD)):
            for key, kind, value in self._read(some):
                name = TextResult(self._place(key), [], self._rewriter.stays(decode(key), IS_NAME))
                if name.left:
                    yield name
                results, commands = self._planned(key, kind, value)
                yield from self._change(key) if writes and commands else results

    def _read(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, Any]]:
        """Yield each readable key with its type and value."""
        kinds = self._pipeline.execute([(b"TYPE", key) for key in keys])
        known = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind in _READS]
        commands = [(_READS[kind][0], key, *_READS[kind][1:]) for key, kind in known]
        values = self._pipeline.execute(commands, tolerate="WRONGTYPE")
        for (key, kind), value in zip(known, values, strict=True):
            if not isinstance(value, ResponseError) and value is not None:
                yield key, kind, value

    def _change(self, key: bytes) -> list[TextResult]:
        """Change a key in a transaction, unless another program changes it again and again."""
        results: list[TextResult] = []
        for _ in range(_ATTEMPTS):
            self._pipeline.execute([(b"WATCH", key)])
            results = []
            for _, kind, value in self._read([key]):
                results, commands = self._planned(key, kind, value)
                if commands and self._pipeline.commit([*commands, *self._also(key)]):
                    return results
            if not any(one.hits for one in results):
                self._pipeline.execute([(b"UNWATCH",)])
                return results
        return [one.failed(CHANGED_MEANWHILE) for one in results]

    def _planned(
        self, key: bytes, kind: bytes, value: Any
    ) -> tuple[list[TextResult], list[Command]]:
        """Return what there is to report of a key, and the commands that change it."""
        results: list[TextResult] = []
        commands: list[Command] = []
        names = value[::2] if kind == b"hash" else value if kind not in self._types else []
        for name in [names] if isinstance(names, bytes) else names:
            left = self._rewriter.stays(decode(name), IS_NAME)
            results.append(TextResult(self._place(key), [], left))
        for part in _parts(kind, key, value) if kind in self._types else ():
            if self._rewriter.is_suspect(part.text):
                new = rewrite_bytes(part.text, self._rewriter, part.field)
                results.append(new.at(f"{self._place(key)}{part.place}"))
                commands += [part.change(new.text)] if new.hits else []
        return [one for one in results if one.changes], commands

    def _place(self, key: bytes) -> str:
        return f"the key {visible(decode(key))}"


def _parts(kind: bytes, key: bytes, value: Any) -> Iterator[_Part]:
    """Yield the texts of a key."""
    if kind == b"string":
        yield _Part("", value, lambda new: (b"SET", key, new, b"KEEPTTL"))
    elif kind == b"hash":
        for name, one in zip(value[::2], value[1::2], strict=True):
            field = decode(name)
            place = f", field {visible(field)}"
            yield _Part(place, one, partial(_set_field, key, name), field)
    else:
        for at, one in enumerate(value):
            yield _Part(f", element {at}", one, partial(_set_element, key, at))


def _set_field(key: bytes, name: bytes, new: bytes) -> Command:
    return b"HSET", key, name, new


def _set_element(key: bytes, at: int, new: bytes) -> Command:
    return b"LSET", key, str(at).encode(), new
