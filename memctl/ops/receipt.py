"""Receipts of erases: counts of the erased data, and digests that find the data if they return.

A receipt holds no content, no name of a user or session, and no id in the clear.  Names and message
ids are kept as HMAC-SHA256 under a random key, which the receipt holds.  With the key, a guess can
be tested, but no name can be read, and two receipts cannot be compared.  A receipt has no digest of
texts.  The names of removed blobs, which are digests of contents, are kept as HMAC, too.  Short
ids have no digest, either: they could be guessed or belong to several messages.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import sys
from array import array
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from memctl.errors import BadData, NotFound, UsageError
from memctl.journal.erase import RunEraser
from memctl.journal.runs import Run, Runs
from memctl.model import MemoryKey
from memctl.ops.data_subject import ALWAYS, Subject, readings
from memctl.ops.names import list_names
from memctl.ops.retry import leaving_damaged
from memctl.registry import file_of, is_object
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.files import system_errors
from memctl.storekit.named_file import NamedFile
from memctl.text.numbers import count
from memctl.version import __version__

SCHEMA = "memctl/erase-receipt/1"
RECEIPT_HINT = "memctl erase prints the path of its receipt, and so does memctl redact"
LEAST_ID = 16
"""The length of the shortest id with a digest, in characters."""
_SIZE = 8
"""The bytes of the kept digest of an id."""


class State(StrEnum):
    """The state of a store in a receipt."""

    PENDING = "pending"
    BEGUN = "begun"
    ERASED = "erased"
    PARTIAL = "partial"
    FAILED = "failed"
    NOTHING = "nothing-there"


class ErasedStore(Struct):
    """The part of a receipt for one store: the outcome of the erase there.

    ``store`` is the label of the store.  ``argument`` is the command-line argument that names the
    store, without a password.
    """

    store: str
    argument: str
    kind: str
    state: State = State.PENDING
    memories: int = 0
    messages: int = 0
    runs: dict[str, int] = field(default_factory=lambda: {"removed": 0, "rewritten": 0})
    failures: list[str] = field(default_factory=list)
    """The code of each memory or undo run that could not be erased."""
    held: list[str] = field(default_factory=list)
    """The digest of the name of each memory that stayed because it was held."""
    not_reached: list[str] = field(default_factory=list)
    """The kinds of data about the user that an erase leaves in a store of this ``kind``."""

    def after(self, before: ErasedStore) -> ErasedStore:
        """Return the outcome together with ``before``, that of an earlier run on the store."""
        if self.state == State.PENDING:
            return before
        state: State = self.state
        if before.messages or before.memories:
            state = {State.NOTHING: State.ERASED, State.FAILED: State.PARTIAL}.get(state, state)
        return replace(
            self,
            state=state,
            memories=before.memories + self.memories,
            messages=before.messages + self.messages,
            runs={name: before.runs.get(name, 0) + number for name, number in self.runs.items()},
        )


class Digests:
    """The digests of the ids of erased messages, under the random key of one receipt."""

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key or secrets.token_bytes(32)
        self._ids: set[int] = set()

    @property
    def packed(self) -> bytes:
        """The sorted digests of the message ids, eight bytes each."""
        return array("Q", sorted(self._ids)).tobytes()

    @packed.setter
    def packed(self, ids: bytes) -> None:
        self._ids = set(array("Q", ids))

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, *names: str) -> str:
        """Return the digest of a user, or of a user and a session, in hexadecimal."""
        return self._digest(json.dumps(names).encode()).hex()

    def add(self, ids: Iterable[str]) -> None:
        """Add digests of the ids of messages to erase, without ids shorter than ``LEAST_ID``."""
        self._ids.update(self._of_id(id) for id in ids if len(id) >= LEAST_ID)

    def has(self, id: str) -> bool:
        """Return whether an erased message had the id; False if it is shorter than ``LEAST_ID``."""
        return len(id) >= LEAST_ID and self._of_id(id) in self._ids

    def _of_id(self, id: str) -> int:
        digest = self._digest(id.encode("utf-8", "surrogatepass"))
        return int.from_bytes(digest[:_SIZE], sys.byteorder)

    def _digest(self, text: bytes) -> bytes:
        return hmac.digest(self.key, text, "sha256")


class Receipt(Struct):
    """The receipt of an erase of one user or session; ``save`` writes it to its file."""

    file: NamedFile
    version: str
    scope: str
    subject: str
    """The digest of the user, or of the user and the session."""
    digests: Digests
    stores: list[ErasedStore] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    """The digest of the name of each offloaded content that was removed."""
    blobs_kept_for: list[str] = field(default_factory=list)
    """The stores that may need offloaded contents of the subject, because nobody could ask them."""
    created: str = ""
    ended: str | None = None
    earlier: list[ErasedStore] = field(default_factory=list)
    """The outcomes of the runs of memctl that did not finish this erase."""
    saved: bool = False

    @classmethod
    def begin(cls, place: str | None, subject: Subject, *, force: bool = False) -> Receipt:
        """Return the receipt for an erase; ``place`` is a path or the URL of an object.

        If the file has the receipt of an erase of the same subject that is not complete, the erase
        goes on with this receipt.  Without ``place``, the file gets a new name in the default
        folder, which is created.  ``force`` replaces an existing file.

        Raises:
            UsageError: the file exists, and is no such receipt; or the URL is not valid.
            Unavailable: the operating system refuses to create the default folder.
        """
        file = file_at(place, "erase")
        names = (subject.user,) if subject.session is None else (subject.user, subject.session)
        scope = "user" if subject.session is None else "session"
        if place is not None and not force and file.exists():
            with suppress(BadData):
                found = read_receipt(place)
                own = scope == found.scope and found.digests.of(*names) == found.subject
                if own and not found.complete:
                    found.file, found.ended = file, None
                    found.earlier, found.stores = found.stores, []
                    return found
            hint = "name another file, or use --force to replace it"
            raise UsageError(f"{file.label} exists", hint)
        digests = Digests()
        return cls(file, __version__, scope, digests.of(*names), digests, created=_now())

    @property
    def outcomes(self) -> list[ErasedStore]:
        """The outcome of the erase in each store, over all runs of memctl."""
        found = {one.store: one for one in self.earlier}
        for one in self.stores:
            found[one.store] = one.after(found[one.store]) if one.store in found else one
        return [*found.values()]

    def names(self, key: MemoryKey) -> bool:
        """Return whether the memory ``key`` belongs to the erased user or session."""
        names = (key.user,) if self.scope == "user" else (key.user, key.session)
        return hmac.compare_digest(self.digests.of(*names), self.subject)

    def left_held(self, key: MemoryKey) -> bool:
        """Return whether the erase left the memory ``key`` because it was held.

        The data of the user outside sessions stayed with it.
        """
        held = {digest for store in self.stores for digest in store.held}
        return bool(held) and (not key.session or self.digests.of(*key[:2]) in held)

    @property
    def complete(self) -> bool:
        """True if the erase has ended, and erased the user or session from all its stores."""
        done = State.ERASED, State.NOTHING
        return bool(self.ended) and all(one.state in done for one in self.outcomes)

    def end(self) -> None:
        """Set the end of the erase to the present time."""
        self.ended = _now()

    def save(self) -> None:
        """Replace the file of the receipt, durably; on a disk, with mode 0600.

        A file whose name ends in ``.html`` becomes a page with the record attached.

        Raises:
            Unavailable: the operating system or the server refuses the write.
        """
        record = {
            "schema": SCHEMA,
            "memctl": self.version,
            "created": self.created,
            "ended": self.ended,
            "complete": self.complete,
            "scope": self.scope,
            "digests": {
                "algorithm": "hmac-sha256",
                "key": self.digests.key.hex(),
                "subject": self.subject,
                "messages": base64.b64encode(self.digests.packed).decode(),
            },
            "stores": [asdict(one) for one in self.outcomes],
            "blobs": self.blobs,
            "blobs_kept_for": self.blobs_kept_for,
            "not_reached": list(ALWAYS),
        }
        text = json.dumps(record, indent=1).encode() + b"\n"
        if _is_page(self.file):
            from memctl.ops.receipt_page import page  # loads templates

            text = page(record, text, self.file, len(self.digests))
        with self.file.create(0o600) as new:
            new.write(text)
            new.commit()
        self.saved = True

    def discard(self) -> None:
        """Remove the file of the receipt, if it was saved, because the erase erased nothing."""
        if self.saved:
            self.file.remove()


class _RecordedDigests(Struct):
    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    subject: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    messages: bytes


class _Record(Struct):
    """The JSON of a receipt."""

    schema: Annotated[str, Meta(pattern=f"^{SCHEMA}$")]
    memctl: str
    created: datetime
    ended: datetime | None
    scope: Literal["user", "session"]
    digests: _RecordedDigests
    stores: Annotated[list[ErasedStore], Meta(min_length=1)]
    blobs: list[str]
    blobs_kept_for: list[str] = []


def read_text(place: str) -> tuple[NamedFile, bytes]:
    """Return the file of a receipt and its content; ``place`` is a path or the URL of an object.

    Raises:
        NotFound: the file does not exist.
        BadData: it is not a regular file.
        Unavailable: the operating system or the server refuses to read it.
    """
    file = file_of(place)
    if file.stamp() is None:
        raise NotFound(f"{file.label} does not exist", RECEIPT_HINT)
    try:
        handle = file.open()
    except BadData as error:
        raise BadData(f"{file.label} is not a regular file", RECEIPT_HINT) from error
    with system_errors(file.on_disk, "read"), os.fdopen(handle, "rb") as source:
        return file, source.read()


def read_receipt(place: str) -> Receipt:
    """Read a receipt from its file; ``place`` is a path or the URL of an object.

    Raises:
        NotFound, Unavailable: as ``read_text``.
        BadData: the file is not a receipt of ``memctl erase``.
    """
    file, text = read_text(place)
    try:
        if text.startswith(b"<") or _is_page(file):
            from memctl.ops.receipt_page import attachment  # loads templates

            text = attachment(text)
        record = msgspec.json.decode(text, type=_Record)
        digests = Digests(bytes.fromhex(record.digests.key))
        digests.packed = record.digests.messages
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        why = f"{file.label} is not a receipt of memctl erase: {error}"
        raise BadData(why, RECEIPT_HINT) from error
    return Receipt(
        *(file, record.memctl, record.scope, record.digests.subject, digests),
        stores=record.stores,
        blobs=record.blobs,
        blobs_kept_for=record.blobs_kept_for,
        created=_as_text(record.created),
        ended=None if record.ended is None else _as_text(record.ended),
    )


def file_at(place: str | None, command: str) -> NamedFile:
    """Return the file for a receipt; without ``place``, a new one in the default folder.

    The default folder, in the state folder of this platform, is created.

    Raises:
        UsageError: the URL is not valid.
        Unavailable: the operating system refuses to create the default folder.
    """
    if place is not None:
        return file_of(place if is_object(place) else os.path.abspath(os.path.expanduser(place)))
    from platformdirs import user_state_path  # only needed for a receipt

    name = f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.json"
    path = user_state_path("memctl") / "receipts" / name
    with system_errors(path, "write"):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
    return file_of(str(path))


def _is_page(file: NamedFile) -> bool:
    return file.name.lower().endswith((".html", ".htm"))


def _now() -> str:
    return _as_text(datetime.now(UTC))


def _as_text(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


class Trace(NamedTuple):
    """A trace of erased data: a name, messages under another name, or an undo run.

    ``code`` is "name", "message" or "undo-run".  ``key`` is the name itself, or names the memory
    that has the messages.
    """

    code: str
    message: str
    key: MemoryKey = MemoryKey("", "")
    id: str = ""
    """The id of the first of the found messages; empty for a name or an undo run."""


class Traces(Struct):
    """The traces of erased data in a store and in the undo runs on the store.

    ``unsearched`` has the reasons why undo runs could not be searched.  ``held`` are memories that
    the erase left because they were held: no traces.
    """

    found: list[Trace] = field(default_factory=list)
    unsearched: list[str] = field(default_factory=list)
    held: list[MemoryKey] = field(default_factory=list)


async def find_traces(store: Store, receipt: Receipt, runs: list[Run]) -> Traces:
    """Find data in a store and in the undo runs ``runs`` that the receipt lists as erased.

    The store must be open.

    Raises:
        MemctlError: as ``Store.check_integrity``, ``Store.names`` and ``Store.outline``.
    """
    await store.check_integrity(Selection(), complete=True)
    concerns = _concerns(store, receipt)
    keys = await leaving_damaged(partial(list_names, store, Selection()))
    there = [key for key in keys if concerns(key)]
    traces = Traces(held=[key for key in there if receipt.left_held(key)])
    traces.found += [Trace("name", "it exists", key) for key in there if not receipt.left_held(key)]
    if len(receipt.digests):
        traces.found += await leaving_damaged(partial(_messages, store, receipt, concerns))
    gone = RunEraser(Runs(), lambda key: concerns(key) and not receipt.left_held(key))
    erased = await gone.erase(runs, dry_run=True)
    traces.unsearched += erased.failures.values()
    for held in (*erased.removed, *erased.rewritten):
        traces.found.append(Trace("undo-run", f"the undo run {held} holds it"))
    return traces


def _concerns(store: Store, receipt: Receipt) -> Callable[[MemoryKey], bool]:
    """Return a test whether a memory may belong to the erased user or session.

    The result is True for each memory of a state file in the receipt: the file names no user.
    """
    if store.kind == "state" and any(one.store == store.label for one in receipt.stores):
        return lambda _: True
    return lambda key: any(map(receipt.names, readings(store.kind, key)))


async def _messages(
    store: Store, receipt: Receipt, concerns: Callable[[MemoryKey], bool]
) -> list[Trace]:
    """Return a trace for each memory under another name that has erased messages.

    ``concerns`` tells whether a memory may belong to the erased user or session.  A message whose
    id is made from its content, such as a system prompt of LangChain, is no trace.
    """
    found: list[Trace] = []
    ids: list[str] = []
    async with aclosing(store.outline(Selection())) as pages:
        async for page in pages:
            ids += [
                one.id
                for one in page.messages
                if receipt.digests.has(one.id)
                and (not one.message or store.dialect.names_itself(one.message))
            ]
            key = page.memory.key
            if page.last:
                if ids and not concerns(key):
                    text = f"{count(len(ids), 'message')} of the erased data"
                    found.append(Trace("message", text, key, ids[0]))
                ids = []
    return found
