"""Receipts of redactions: digests by which the values are found if they return.

A receipt holds no value.  It has, of each, its kind, its length, the few characters that a report
shows, and its HMAC-SHA256 under a random key that the receipt holds.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from memctl.errors import BadData, UsageError
from memctl.ops.receipt import RECEIPT_HINT, file_at, read_text
from memctl.ops.redact.rules import Rule, Rules
from memctl.storekit.named_file import NamedFile
from memctl.storekit.texts import Hit
from memctl.version import __version__

SCHEMA = "memctl/redact-receipt/1"
_SHOWN, _PART = 4, 4
"""A value is shown by at most 4 characters, and at most a quarter of it."""


def beginning(value: str) -> str:
    """Return the few characters by which a value is shown."""
    return value[: min(_SHOWN, len(value) // _PART)]


class Value(Struct, frozen=True):
    """A value that was taken out, without the value."""

    kind: str
    begins: str
    length: Annotated[int, Meta(ge=1)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class StoreEntry(Struct):
    """A store of a redaction: how many values were taken out, and how many stay."""

    store: str
    argument: str
    kind: str
    redacted: int = 0
    left: int = 0


class OtherReceipt(BadData):
    """The error that a file is not a receipt of ``memctl redact``, but perhaps of ``erase``."""


class _Schema(Struct):
    schema: str


class _Record(_Schema):
    memctl: str
    created: datetime
    ended: datetime | None
    complete: bool
    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    values: list[Value]
    stores: list[StoreEntry]


class Receipt(Struct):
    """The receipt of a redaction; ``save`` writes it to its file."""

    file: NamedFile
    key: bytes = field(default_factory=partial(secrets.token_bytes, 32))
    values: dict[Value, None] = field(default_factory=dict)
    stores: list[StoreEntry] = field(default_factory=list)
    created: datetime = field(default_factory=partial(datetime.now, UTC))
    ended: datetime | None = None
    _known: dict[Value, Hit] = field(default_factory=dict)
    """The values that the run has found, without those of the receipt of an earlier run."""

    @classmethod
    def begin(cls, place: str | None, *, force: bool = False) -> Receipt:
        """Return the receipt for a redaction; ``place`` is a path or the URL of an object.

        If the file has the receipt of a redaction that is not complete, the new one goes on with
        its values.  Without ``place``, the file gets a new name in the default folder.

        Raises:
            UsageError: the file exists, and is no such receipt.
            Unavailable: the operating system refuses to create the default folder.
        """
        file = file_at(place, "redact")
        if place is not None and not force and file.exists():
            with suppress(BadData):
                found = read_receipt(place)
                if not found.complete:
                    return cls(file, found.key, found.values, created=found.created)
            raise UsageError(
                f"{file.label} exists", "name another file, or use --force to replace it"
            )
        return cls(file)

    @property
    def goes_on(self) -> bool:
        """True if the receipt is that of a run that has not ended."""
        return bool(self.values) and self.ended is None

    @property
    def complete(self) -> bool:
        """True if the redaction has ended, and no value stays in any of its stores."""
        return self.ended is not None and not any(one.left for one in self.stores)

    def add(self, hit: Hit) -> None:
        """Remember a value that is to be taken out."""
        begins = beginning(hit.value)
        digest = _digest(self.key, hit.value)
        value = Value(hit.kind, begins, len(hit.value), digest)
        self.values.setdefault(value)
        self._known[value] = hit

    def rules(self) -> Rules:
        """Return the rules that find the values again."""
        forms: dict[tuple[str, str, int], set[str]] = {}
        for value in self.values.keys() - self._known.keys():
            forms.setdefault((value.kind, value.begins, value.length), set()).add(value.digest)
        texts: dict[str, list[str]] = {}
        for hit in sorted(self._known.values(), key=lambda one: -len(one.value)):
            texts.setdefault(hit.kind, []).append(re.escape(hit.value))
        known = [Rule(kind, "|".join(some), group=0) for kind, some in texts.items()]
        return Rules([*known, *(self._rule(*form, found) for form, found in forms.items())])

    def _rule(self, kind: str, begins: str, length: int, digests: set[str]) -> Rule:
        rest = length - len(begins)
        regex = f"(?=({re.escape(begins)}.{{{rest}}}))"  # values may overlap
        known: Callable[[str], bool] = lambda value: _digest(self.key, value) in digests  # noqa: E731
        return Rule(kind, regex, flags=re.DOTALL, group=1, known=known)

    def save(self) -> None:
        """Replace the file of the receipt, durably; on a disk, with mode 0600.

        Raises:
            Unavailable: the operating system or the server refuses the write.
        """
        record = _Record(
            *(SCHEMA, __version__, self.created, self.ended, self.complete, self.key.hex()),
            *([*self.values], self.stores),
        )
        text = json.dumps(msgspec.to_builtins(record), indent=1).encode() + b"\n"
        with self.file.create(0o600) as new:
            new.write(text)
            new.commit()


def read_receipt(place: str) -> Receipt:
    """Read a receipt from its file; ``place`` is a path or the URL of an object.

    Raises:
        NotFound, Unavailable: as ``read_text``.
        OtherReceipt: the file is not a receipt of ``memctl redact``.
        BadData: the file is damaged, or not a regular file.
    """
    file, text = read_text(place)
    try:
        is_other = msgspec.json.decode(text, type=_Schema).schema != SCHEMA
    except (ValueError, msgspec.MsgspecError, RecursionError):
        is_other = True
    if is_other:
        raise OtherReceipt(f"{file.label} is not a receipt of memctl redact", RECEIPT_HINT)
    try:
        found = msgspec.json.decode(text, type=_Record)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        why = f"the receipt {file.label} is damaged: {error}"
        raise BadData(why, RECEIPT_HINT) from error
    values = dict.fromkeys(found.values)
    key = bytes.fromhex(found.key)
    return Receipt(file, key, values, found.stores, found.created, found.ended)


def _digest(key: bytes, value: str) -> str:
    return hmac.digest(key, value.encode("utf-8", "surrogatepass"), "sha256").hex()
