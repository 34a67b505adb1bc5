"""Streams that encrypt and decrypt by age.

The library for age reads its input to the end in one call.  So it runs in a thread, and a pipe
connects the thread with the caller.  Both directions need constant memory.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from memctl.encryption import (
    MAGIC,
    Encryption,
    is_encrypted,
    read_identities,
    read_recipients,
)
from memctl.errors import BadData, Unavailable

_BUFFER = 64 * 1024
"""The bytes that move at once; age encrypts in chunks of this size."""
_PASSPHRASE = MAGIC + b"-> scrypt "
"""The beginning of a file that is encrypted by a passphrase, without recipients."""


class Sink(Protocol):
    """The output of an archive writer: a file, or a compressor or encryptor on top of a file."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of the data."""

    def flush(self) -> object:
        """Pass buffered data on to the file."""


@contextmanager
def encrypted(name: str, sink: Sink, encryption: Encryption) -> Iterator[Sink]:
    """Yield an encryptor that writes to ``sink``; ``sink`` itself if ``name`` lacks ``.age``.

    If the block fails, the output in ``sink`` stays incomplete.  The sink stays open.  A thread
    writes to the sink; its errors are raised by ``write`` or at the end of the block.

    Raises:
        UsageError: there is no valid recipient, or the library for age is not installed.
    """
    if not is_encrypted(name):
        yield sink
        return
    encryptor = _Encryptor(sink, read_recipients(encryption, name))
    try:
        yield encryptor
    except BaseException:
        encryptor.discard()
        raise
    encryptor.finish()


def decrypted(
    raw: io.RawIOBase, start: bytes, encryption: Encryption, label: str
) -> io.BufferedReader:
    """Return a stream of the decrypted data of ``raw``, which the stream closes at its end.

    ``start`` has the first bytes of the data.  ``label`` names the file in errors.  A stream that
    is closed or dropped early stops its thread.

    Raises:
        Unavailable: there is no identity, or (from the first read) none is of a recipient.
        BadData: (from any read) the data is damaged or truncated.
        UsageError: the library for age is not installed.
    """
    if start.startswith(_PASSPHRASE):
        raise Unavailable(
            f"{label} is encrypted by a passphrase, and memctl reads files for recipients",
            "decrypt it with age, and pipe it: age --decrypt FILE | memctl import - STORE",
        )
    keys = read_identities(encryption, label)
    return io.BufferedReader(_Decrypted(raw, keys, label), _BUFFER)


class _Kept:
    """The streams around the library, and the first of their errors.

    The library replaces an error of its input or output by an error of its own.
    """

    def __init__(
        self, read: Callable[[int], bytes | None], write: Callable[[bytes], object]
    ) -> None:
        self.error: BaseException | None = None
        self._read = read
        self._write = write

    def read(self, size: int) -> bytes:
        with self._keeping():
            return self._read(size) or b""

    def write(self, data: bytes) -> int:
        with self._keeping():
            self._write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing; the library looks for the method."""

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.error = self.error or error
            raise


class _Encryptor:
    """A sink that encrypts to recipients and writes to another sink."""

    def __init__(self, sink: Sink, recipients: list[Any]) -> None:
        reads, self._pipe = os.pipe()
        self._input = os.fdopen(reads, "rb", buffering=_BUFFER)
        self._complete = False
        self._streams = _Kept(self._read, sink.write)
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._encrypt, args=[recipients], name="age", daemon=True
        )
        self._thread.start()

    def write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._pipe, left) :]
        except OSError:  # the thread has ended
            self._stop()
            raise

    def flush(self) -> None:
        """Do nothing: the encryptor waits for whole chunks."""

    def finish(self) -> None:
        """Write the last chunk, and wait for the end of the thread.

        Raises:
            Exception: an error of the sink.
        """
        self._complete = True
        self._stop()

    def discard(self) -> None:
        """Stop the thread without a last chunk."""
        with suppress(BaseException):
            self._stop()

    def _stop(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _read(self, size: int) -> bytes:
        data = self._input.read(size)
        if not data and not self._complete:
            raise EOFError("the writer failed")
        return data

    def _encrypt(self, recipients: list[Any]) -> None:
        import pyrage

        try:
            pyrage.encrypt_io(self._streams, self._streams, recipients)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the writer
            self._error = self._streams.error or error
        finally:
            self._input.close()


class _Decrypted(io.RawIOBase):
    """The decrypted data of an encrypted stream.

    The thread holds no reference to this object, so a dropped stream is closed, which ends the
    thread.
    """

    def __init__(self, raw: io.RawIOBase, identities: list[Any], label: str) -> None:
        reads, writes = os.pipe()
        self._pipe = io.FileIO(reads)
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(
            target=_decrypt,
            args=[raw, writes, identities, label, self._failures],
            name="age",
            daemon=True,
        )
        self._thread.start()
        # Also at the exit of the interpreter, before the thread would lose its interpreter.
        self._end = weakref.finalize(self, _end, self._pipe, self._thread)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = self._pipe.readinto(buffer)
        if not count:
            self._thread.join()
            for error in self._failures:
                raise error
        return count or 0

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()


def _decrypt(
    raw: io.RawIOBase,
    pipe: int,
    identities: list[Any],
    label: str,
    failures: list[BaseException],
) -> None:
    """Decrypt ``raw`` to the end, into the pipe; add an error to ``failures``."""
    import pyrage

    with suppress(OSError), raw, os.fdopen(pipe, "wb", buffering=_BUFFER) as output:
        streams = _Kept(io.BufferedReader(raw, _BUFFER).read, output.write)
        try:
            pyrage.decrypt_io(streams, streams, identities)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the reader
            failures.append(streams.error or _translated(error, label))


def _translated(error: BaseException, label: str) -> BaseException:
    if "No matching keys" in str(error):
        return Unavailable(
            f"{label} is encrypted for other keys than the configured identity",
            "name the identity of a recipient: identity_file or identity_command in "
            "[encryption] of the configuration",
        )
    return BadData(
        f"{label} is encrypted, and truncated or damaged: {error}",
        "get a complete and unchanged copy of it",
    )


def _end(pipe: io.FileIO, thread: threading.Thread) -> None:
    pipe.close()
    if thread is not threading.current_thread():
        thread.join()
