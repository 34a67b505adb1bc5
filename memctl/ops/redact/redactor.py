"""Values taken out of texts: plain texts, JSON, and JSON in strings of JSON.

Only the strings with a value change; every other byte of a JSON text stays.  Ids, types and roles
stay as well, because they tie the messages of a conversation together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from memctl.errors import UsageError
from memctl.json.located import LocatedText, Span, located, spliced
from memctl.ops.redact.rules import Rules
from memctl.storekit.texts import Hit, Rewriter, Rewritten

OURS = re.compile(r"\[redacted:[\w.-]+(?::\d+)?\]")
"""A text that took the place of a value."""
_ENUMERATED = frozenset({"type", "role", "object", "status", "stop_reason", "finish_reason"})
"""The keys of strings that say what a thing is, such as ``user``."""
_ID = re.compile(r"(?:^|_|[a-z](?=[IU]))(?:id|Id|ids|Ids|uuid|Uuid|ID)$")
_THINKING = {"thinking", "signature"}
"""The keys of a block with thinking, and with a signature that covers it."""
_PART_SIGNATURE = "thought_signature"
"""The key of the signature of a part of Gemini's, which may be missing."""
_BLOCK = b'{"type":"text","text":"[redacted:thinking]"}'
"""The block that stays of a message of thinking alone."""
IN_ID = "it is in an id, which ties messages together"
IN_KEY = "it is in a key of an object"
IN_NUMBER = "it is a number"


@dataclass(slots=True)
class _Found:
    """The changes of a JSON text, and what was found in it."""

    splices: list[tuple[Span, bytes]] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    left: list[tuple[Hit, str]] = field(default_factory=list)
    signed: int = 0

    def add(self, inner: _Found) -> None:
        """Add what was found in a part of the text."""
        self.splices += inner.splices
        self.hits += inner.hits
        self.left += inner.left
        self.signed += inner.signed


class Redactor(Rewriter):
    """Replaces the values that rules find by ``[redacted:KIND]``.

    With ``consistent``, the replacement of a value has a number, the same wherever the value is:
    ``[redacted:github-pat:2]``.
    """

    def __init__(self, rules: Rules, *, consistent: bool = False) -> None:
        self._rules = rules
        self._numbers: dict[Hit, int] | None = {} if consistent else None

    def suspects(self, texts: Sequence[bytes]) -> Iterable[int]:
        return self._rules.suspects(texts)

    def find(self, text: str) -> list[Hit]:
        ours = [found.span() for found in OURS.finditer(text)]
        return [
            Hit(match.kind, text[match.start : match.stop])
            for match in self._rules.find(text)
            if not any(start <= match.start and match.stop <= stop for start, stop in ours)
        ]

    def replacement(self, hit: Hit) -> str:
        """Return the text that takes the place of a value."""
        if self._numbers is None:
            return f"[redacted:{hit.kind}]"
        number = self._numbers.setdefault(hit, len(self._numbers) + 1)
        return f"[redacted:{hit.kind}:{number}]"

    def require_end(self) -> None:
        """Check that no rule finds anything in the texts that take the place of values.

        Raises:
            UsageError: a rule does: a second run would never end.
        """
        kinds = {rule.kind for rule in self._rules.rules} | {"text"}
        for text in (f"[redacted:{kind}]" for kind in sorted(kinds)):
            if self._rules.find(text):
                raise UsageError(
                    f"what is to be found is also in {text!r}, which takes its place",
                    "name more of the text",
                )

    def rewrite(self, text: bytes) -> Rewritten:
        if text.lstrip()[:1] in (b"{", b"[", b'"'):
            with suppress(ValueError):  # it only looks like JSON
                return self._rewrite_json(text)
        plain = text.decode("utf-8", "surrogateescape")
        new, hits = self._replace(plain)
        return Rewritten(new.encode("utf-8", "surrogateescape") if hits else text, hits, [])

    def _replace(self, text: str) -> tuple[str, list[Hit]]:
        pieces: list[str] = []
        hits: list[Hit] = []
        at = 0
        ours = [found.span() for found in OURS.finditer(text)] if "[redacted:" in text else []
        for match in self._rules.find(text):
            if any(start <= match.start and match.stop <= stop for start, stop in ours):
                continue
            hit = Hit(match.kind, text[match.start : match.stop])
            pieces += [text[at : match.start], self.replacement(hit)]
            hits.append(hit)
            at = match.stop
        return "".join([*pieces, text[at:]]), hits

    # JSON

    def _rewrite_json(self, text: bytes) -> Rewritten:
        found = _Found()
        self._walk(text, located(text), "", found)
        new = spliced(text, found.splices) if found.splices else text
        return Rewritten(new, found.hits, found.left, found.signed)

    def _walk(self, text: bytes, value: Any, key: str, found: _Found) -> None:
        match value:
            case LocatedText():
                self._string(text, value, key, found)
            case dict():
                before = len(found.splices)
                for name, one in value.items():
                    found.left += self.stays(name, IN_KEY)
                    self._walk(text, one, name, found)
                signature = value.get(_PART_SIGNATURE)
                if len(found.splices) > before and isinstance(signature, LocatedText):
                    found.splices.append((signature.span, b"null"))
                    found.signed += 1
            case list():
                self._items(text, value, key, found)
            case int() | float() if not isinstance(value, bool):
                found.left += self.stays(repr(value), IN_NUMBER)

    def _items(self, text: bytes, items: list[Any], key: str, found: _Found) -> None:
        """Walk through an array; leave out thinking whose signature covered a text that changed."""
        gone: list[int] = []
        for at, item in enumerate(items):
            inner = _Found()
            self._walk(text, item, key, inner)
            if inner.splices and isinstance(item, dict) and item.keys() >= _THINKING:
                inner.splices.clear()
                gone.append(at)
            found.add(inner)
        found.signed += len(gone)
        found.splices += _without(items, gone)

    def _string(self, text: bytes, value: LocatedText, key: str, found: _Found) -> None:
        literal = text[value.span.start : value.span.stop]
        whole = json.loads(literal.decode("utf-8", "surrogatepass")) if value.cut else str(value)
        if key in _ENUMERATED:
            return
        if _ID.search(key):
            found.left += self.stays(whole, IN_ID)
            return
        again = self._inside(whole)
        found.add(_Found([], again.hits, again.left, again.signed))
        if again.hits:
            new = again.text.decode("utf-8", "surrogatepass")
            in_ascii = literal.isascii()
            try:
                quoted = json.dumps(new, ensure_ascii=in_ascii).encode()
            except UnicodeEncodeError:  # a lone surrogate
                quoted = json.dumps(new).encode()
            found.splices.append((value.span, quoted))

    def _inside(self, text: str) -> Rewritten:
        """Return a string of JSON without its values; it may be JSON itself."""
        if text.lstrip()[:1] in ("{", "["):
            with suppress(ValueError):  # it only looks like JSON
                return self._rewrite_json(text.encode("utf-8", "surrogatepass"))
        new, hits = self._replace(text)
        return Rewritten(new.encode("utf-8", "surrogatepass"), hits, [])


def _without(items: list[Any], gone: list[int]) -> Iterator[tuple[Span, bytes]]:
    """Yield the splices that take blocks out of an array; an array of no others keeps a text.

    A message without content is not valid.
    """
    kept = [at for at in range(len(items)) if at not in gone]
    for at in gone:
        start, stop = items[at].span
        if not kept:
            yield items[at].span, _BLOCK
        elif at < kept[0]:
            yield Span(start, items[at + 1].span.start), b""
        else:
            yield Span(items[at - 1].span.stop, stop), b""
