"""Vectors of messages in an index, and their similarity to the vector of a query.

A block has a matrix of half-precision numbers, with a row for each piece of its messages.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memctl.errors import UsageError
from memctl.index.database import IndexedMessage
from memctl.index.text import plain

if TYPE_CHECKING:
    from types import ModuleType

_LONGEST = 2000
"""The characters of a piece to embed: small models read no more."""


def require_numpy() -> ModuleType:
    """Import and return numpy.

    Raises:
        UsageError: numpy is not installed.
    """
    try:
        import numpy
    except ImportError:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            "a search by meaning needs numpy, which is not installed",
            install_command("embeddings"),
        ) from None
    return numpy


_NEIGHBOURS = (0.5, 0.25)
"""The weights of neighbouring messages, by distance."""


def without_senders(query: str, senders: Iterable[str]) -> str:
    """Return ``query`` without the names of senders; unchanged if it consists of names.

    For small models, every message of a person is similar to a query with the person's name.  The
    score by words counts names.
    """
    names = "|".join(re.escape(name) for name in sorted(senders, key=len, reverse=True) if name)
    if not names:
        return query
    left = " ".join(re.sub(rf"\b(?:{names})(?:['’]s)?(?!\w)", " ", query, flags=re.I).split())
    return left if re.search(r"\w", left) else query


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the similarities of consecutive messages to a query, each averaged with neighbours."""
    found = []
    for place, value in enumerate(values):
        total, weights = value, 1.0
        for distance, weight in enumerate(_NEIGHBOURS, 1):
            for other in (place - distance, place + distance):
                if 0 <= other < len(values):
                    total += weight * values[other]
                    weights += weight
        found.append(total / weights)
    return found


def texts_to_embed(entries: Sequence[IndexedMessage]) -> list[str]:
    """Return the texts of all pieces of messages for an embedding model, as ``sender: text``."""
    return [
        f"{entry.name}: {text}" if entry.name else text or " "
        for entry in entries
        for text in (plain(piece)[:_LONGEST].strip() for piece in entry.pieces)
    ]


def pack(vectors: Iterable[array[float]]) -> bytes:
    """Return vectors as the bytes of a matrix of half-precision numbers, each row of length 1."""
    numpy = require_numpy()
    rows = numpy.array([numpy.frombuffer(one, numpy.dtype(one.typecode)) for one in vectors])
    return bytes(_unit(rows).astype("<f2").tobytes())


def similarities(matrix: bytes, query: array[float]) -> list[float]:
    """Return the cosine similarity of the vector ``query`` and each row of ``matrix``.

    ``matrix`` is the result of ``pack``.

    Raises:
        ValueError: the matrix is damaged.
    """
    numpy = require_numpy()
    rows = numpy.frombuffer(matrix, "<f2").astype("f4").reshape(-1, len(query))
    if not numpy.isfinite(rows).all():
        raise ValueError("a vector has values that are not finite")
    wanted = _unit(numpy.array([numpy.frombuffer(query, numpy.dtype(query.typecode))]))[0]
    found: list[float] = (rows @ wanted.astype("f4")).tolist()
    return found


def _unit(rows: Any) -> Any:
    numpy = require_numpy()
    rows = rows.astype("f8")  # squares of large numbers exceed 32-bit floats
    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    return rows / numpy.where(lengths == 0, 1, lengths)
