"""The payloads of messages to write: in the transaction itself, or staged on the server before it.

The payloads of a memory of many pages are staged: they get names that belong to no memory, and the
transaction renames them.  (Queued commands count against ``client-query-buffer-limit``, 1 GB, so
large payloads cannot all be queued.)
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from memctl.engines.redis.pipeline import Command, PackedCommands, Pipeline
from memctl.engines.redis.text import decode, encode
from memctl.json import jsonio
from memctl.layouts.redis.keys import LEASE, RAW_SURROGATES, Keys, canonical_mark
from memctl.model import LARGEST_MESSAGE
from memctl.storekit.simple import Rejected

_LARGE_BYTES = 64 * 1024
_KEYS = 500


class Payloads(ABC):
    """The payloads (texts) of messages, to be stored in a later transaction."""

    @abstractmethod
    def add(self, pipeline: Pipeline, messages: list[bytes]) -> None:
        """Add payloads.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """

    @abstractmethod
    def prepare(self, ttl: int | None) -> Iterator[Command]:
        """Yield commands that prepare the payloads to be stored.

        Redis replies to each command with 1, or with 0 if the payload is lost.  ``ttl`` is the TTL
        of the payloads in milliseconds; None for no expiry.
        """

    @abstractmethod
    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | PackedCommands]:
        """Yield the Redis commands that store the payloads under the keys ``names``, in chunks."""

    def discard(self, pipeline: Pipeline) -> None:  # noqa: B027 - most are nowhere yet
        """Remove payloads that were staged on the server.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """


class InlinePayloads(Payloads):
    """A few payloads, which the transaction contains."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._ttl: int | None = None

    def add(self, pipeline: Pipeline, messages: list[bytes]) -> None:  # noqa: ARG002
        self._messages += messages

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        self._ttl = ttl
        yield from ()

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | PackedCommands]:
        messages = iter(self._messages)
        for some in names:
            texts = list(islice(messages, len(some)))
            if self._ttl is not None:
                yield from _set_commands(some, texts, b"%d" % self._ttl)
            elif some:
                yield _mset_command(some, texts)


class StagedPayloads(Payloads):
    """Many payloads, staged on the server under unique names.

    AgentScope uses no such names.
    """

    def __init__(self, keys: Keys) -> None:
        self._prefix = keys.prefix + b"memctl:" + secrets.token_hex(8).encode() + b":"
        self._count = 0
        self._forever = False

    def add(self, pipeline: Pipeline, messages: list[bytes]) -> None:
        """Store payloads on the server under unique names, until ``put`` renames them."""
        first = self._count
        self._count += len(messages)
        names = list(map(self._name, range(first, self._count)))
        deque(pipeline.stream(_set_commands(names, messages, LEASE)), maxlen=0)

    def _name(self, number: int) -> bytes:
        return self._prefix + b"%d" % number

    def _all_names(self) -> Iterator[bytes]:
        return map(self._name, range(self._count))

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        self._forever = ttl is None
        left = LEASE if ttl is None else b"%d" % ttl
        for name in self._all_names():
            yield (b"PEXPIRE", name, left)

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command]:
        staged = self._all_names()
        for some in names:
            for name in some:
                yield (b"RENAME", next(staged), name)
                if self._forever:  # only now: staged payloads of a killed run must expire
                    yield (b"PERSIST", name)

    def discard(self, pipeline: Pipeline) -> None:
        names = self._all_names()
        commands = iter(lambda: (b"UNLINK", *islice(names, _KEYS)), (b"UNLINK",))
        deque(pipeline.stream(commands), maxlen=0)


def _mset_command(names: list[bytes], messages: list[bytes]) -> PackedCommands:
    pairs = [
        b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(text), text)
        for name, text in zip(names, messages, strict=True)
    ]
    head = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(names))
    return PackedCommands(b"".join([head, *pairs]), 1)


def _set_commands(
    names: list[bytes], messages: list[bytes], ttl: bytes
) -> Iterator[Command | PackedCommands]:
    if max(map(len, messages), default=0) > _LARGE_BYTES:
        for name, message in zip(names, messages, strict=True):
            yield (b"SET", name, message, b"PX", ttl)
        return
    end = b"$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)
    commands = [
        b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b"
        % (len(name), name, len(message), message, end)
        for name, message in zip(names, messages, strict=True)
    ]
    yield PackedCommands(b"".join(commands), len(commands))


# Checks of messages to write


def payload(message: bytes, shape: str) -> bytes:
    """Return the payload of a message; the shape tells how AgentScope wrote lone surrogates."""
    return jsonio.raw_surrogates(message) if shape == RAW_SURROGATES else message


def mark_name(name: str) -> bytes:
    """Return the name of a mark as bytes.

    Raises:
        Rejected: RedisMemory uses the name for the list of another mark.
        UnicodeEncodeError: the name has half of a surrogate pair.
    """
    mark = encode(name)
    if canonical_mark(mark) != mark:
        text = (
            f"RedisMemory lists the mark {decode(canonical_mark(mark))!r} under the name {name!r}"
        )
        raise Rejected("refused", f"{text}: the mark with that name must be renamed first")
    return mark


def check_size(id: str, message: bytes) -> None:
    """Refuse a message that is too large for Redis.

    Raises:
        Rejected: the message, whose id is ``id``, is too large.
    """
    if len(message) > LARGEST_MESSAGE:
        raise Rejected("refused", f"the message {id!r} is larger than the 512 MiB of Redis")


def lone_surrogate(error: UnicodeEncodeError) -> Rejected:
    """Return the refusal of an id, name or mark with a lone surrogate, by the ``error`` for it."""
    return Rejected(
        "refused", f"Redis cannot hold {error.object!r}, which has half of a surrogate pair"
    )
