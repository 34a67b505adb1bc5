"""Values taken out of texts: plain texts, JSON, and JSON in strings of JSON.

Only the strings with a value change; every other byte of a JSON text stays.  Ids, types and roles
stay as well, because they tie the messages of a conversation together.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from memctl.json.located import LocatedText, Span, located, spliced
from memctl.ops.redact.rules import Match, Rules
from memctl.ops.redact.vectors import FactVectors
from memctl.storekit.texts import Hit, Rewriter, Rewritten

_OURS = "[redacted:"
_REPLACEMENT = re.compile(r"\[redacted:[\w.-]+(?::\d+)?\]")
"""A text that took the place of a value."""
_ENUMERATED = frozenset({"type", "role", "object", "status", "stop_reason", "finish_reason"})
"""The keys of strings that say what a thing is, such as ``user``."""
_TIES = frozenset(
    {
        *("id", "ids", "uuid", "parent", "parent_id", "parentID", "parentId", "parentUuid"),
        *("logicalParentUuid", "leafUuid", "messageUuid", "sourceToolAssistantUUID"),
        *("message_id", "messageId", "messageID", "reply_id", "response_id", "item_id"),
        *("previous_response_id", "request_id", "requestId", "promptId", "turn_id"),
        *("tool_call_id", "call_id", "callId", "callID", "tool_use_id", "toolUseID", "toolCallId"),
        *("session_id", "sessionId", "sessionID", "thread_id", "run_id", "invocation_id"),
        *("user_id", "userId", "agent_id", "agentId", "app_name", "checkpoint_id"),
        *("memory_id", "vector_id", "unique_id", "workspace_id", "memory_target"),
        *("cwd", "directory", "worktree", "rollout_path", "marks", "marks_json"),
    }
)
"""The keys and columns that tie data together: ids, names, and the folder of a session.

``aws_access_key_id`` and the like are no such keys: agents pass secrets under them.
"""
_THINKING = {"thinking", "signature"}
"""The keys of a block with thinking, and with a signature that covers it."""
_PART_SIGNATURE = "thought_signature"
"""The key of the signature of a part of Gemini's, which may be missing."""
_BLOCK = b'{"type":"text","text":"[redacted:thinking]"}'
"""The block that stays of a message of thinking alone."""
IN_TIE = "it is in an id, a mark or the folder of a session, which ties data together"
IN_KEY = "it is in a key of an object"
IN_NUMBER = "it is a number"


class _Found(Struct):
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

    def __init__(
        self, rules: Rules, *, consistent: bool = False, vectors: FactVectors | None = None
    ) -> None:
        """``vectors`` are those of facts with another text; without them, such facts stay."""
        self.vectors = vectors
        self.may_have_notes = False
        """True as soon as one of the texts may have a note of a migration."""
        self._rules = rules
        self._numbers: dict[Hit, int] | None = {} if consistent else None

    def suspects(self, texts: Sequence[bytes]) -> Iterable[int]:
        self.may_have_notes = self.may_have_notes or any(b"memctl" in text for text in texts)
        return self._rules.suspects(texts)

    def find(self, text: str) -> list[Hit]:
        return [hit for _, hit in self._matches(text)]

    def vector(self, text: str) -> array[float] | None:
        return None if self.vectors is None else self.vectors.of(text)

    def _matches(self, text: str) -> Iterator[tuple[Match, Hit]]:
        """Yield the values in a text, besides those in texts that took the place of values."""
        ours = [found.span() for found in _REPLACEMENT.finditer(text)] if _OURS in text else []
        for match in self._rules.find(text):
            if not any(start <= match.start and match.stop <= stop for start, stop in ours):
                yield match, Hit(match.kind, text[match.start : match.stop])

    def without_values(self, text: str) -> str:
        """Return a text for people, such as the name of a place, without values."""
        return self._replace(text)[0]

    def replacement(self, hit: Hit) -> str:
        """Return the text that takes the place of a value."""
        if self._numbers is None:
            return f"[redacted:{hit.kind}]"
        number = self._numbers.setdefault(hit, len(self._numbers) + 1)
        return f"[redacted:{hit.kind}:{number}]"

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        if key in _ENUMERATED:
            return Rewritten(text, [], [])
        plain = text.decode("utf-8", "surrogateescape")
        if key in _TIES:
            return Rewritten(text, [], self.stays(plain, IN_TIE))
        if plain.lstrip()[:1] in ("{", "[", '"'):
            with suppress(ValueError):  # it only looks like JSON
                return self._rewrite_json(text)
        new, hits = self._replace(plain)
        return Rewritten(new.encode("utf-8", "surrogateescape") if hits else text, hits, [])

    def _replace(self, text: str) -> tuple[str, list[Hit]]:
        pieces: list[str] = []
        hits: list[Hit] = []
        at = 0
        for match, hit in self._matches(text):
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
        again = self.rewrite(whole.encode("utf-8", "surrogatepass"), key)
        found.add(_Found([], again.hits, again.left, again.signed))
        if again.hits:
            new = again.text.decode("utf-8", "surrogatepass")
            try:
                quoted = json.dumps(new, ensure_ascii=literal.isascii()).encode()
            except UnicodeEncodeError:  # a lone surrogate
                quoted = json.dumps(new).encode()
            found.splices.append((value.span, quoted))


class Finder(Redactor):
    """Finds the values that a redactor would replace, for rewrites that change nothing."""

    def vector(self, text: str) -> array[float]:  # noqa: ARG002 - no fact gets it
        return array("f")


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
