"""The texts of facts, given to a rewriter: a fact with another text gets another vector.

A vector is made from the text of a fact, and would still tell what the text said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memctl.dialects.fact import embedded_text, encode_vector
from memctl.json import jsonio
from memctl.storekit.texts import KEEPS_VECTOR, Rewriter, RewriterWrapper, Rewritten

WHEN = "when_to_use"
"""The field of the metadata from which ReMe makes the vector of a fact."""
_VECTOR = "vector"


class FactRewriter(RewriterWrapper):
    """A rewriter of facts that are messages, or in the lines of an archive.

    A fact stays as it is if its vector has to change, and none can be made.
    """

    def __init__(self, rewriter: Rewriter, embeds: str = WHEN) -> None:
        """``embeds`` is as for ``Store.embeds``."""
        super().__init__(rewriter)
        self._embeds = embeds

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        try:
            value = jsonio.loads(text)
        except ValueError:
            return self._rewriter.rewrite(text, key)
        vectors = [part.pop(_VECTOR, None) for part in _embedded(value)]
        if not any(vectors):
            new = self._rewriter.rewrite(text, key)
            is_form = new.hits and isinstance(value, str) and _VECTOR in value
            return new._replace(text=b'""') if is_form else new  # a store has the fact in it
        before = list(map(self._told, _embedded(value)))
        new = self._rewriter.rewrite(jsonio.dumps(value), key)
        if not new.hits:
            return Rewritten(text, [], new.left)
        value = jsonio.loads(new.text)
        for part, told, vector in zip(_embedded(value), before, vectors, strict=True):
            if vector is None:
                continue
            part[_VECTOR] = vector
            if self._told(part) != told:
                made = self.vector(embedded_text(jsonio.dumps(part), self._embeds))
                if made is None:
                    return new.failed(text, KEEPS_VECTOR)
                part[_VECTOR] = encode_vector(made)
        return new._replace(text=jsonio.dumps(value))

    def _told(self, part: dict[str, Any]) -> tuple[Any, Any]:
        """Return the texts that the vector of a fact or an entity may tell."""
        metadata = part.get("metadata")
        return part.get("text"), metadata.get(WHEN) if isinstance(metadata, dict) else None


def _embedded(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the facts and entities in a message or a line, in order."""
    if not isinstance(value, dict):
        return
    yield value
    for inner in (value.get("message"), *_list(value.get("entities"))):
        yield from _embedded(inner)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
