"""The new file of an export, which appears under its name when the whole export has succeeded.

An ``Output`` is what an export writes to: a file on a disk, an object, a stream, or nothing in a
dry run.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, TextIO

from memctl.encryption import Encryption
from memctl.errors import NotFound, Unavailable
from memctl.machine.system import EXHAUSTED
from memctl.machine.temporary import end, scratch
from memctl.storekit.encrypted import Sink, encrypted
from memctl.storekit.files import NewFile, system_errors
from memctl.storekit.named_file import File

_BUFFER = 256 * 1024


class Output(File):
    """The new file of an export, absent until ``publish``.

    ``create`` begins its content, and begins again if it is called again.  The ``commit`` of the
    content only says that the content is whole: ``publish`` gives it the name, after the export
    has checked what it wrote::

        with Output(file, replace=False) as output:
            with output.create() as new:
                new.write(b"...")
                new.commit()
            output.publish()
    """

    def __init__(
        self,
        file: File,
        *,
        replace: bool,
        encryption: Encryption | None = None,
        dry_run: bool = False,
    ) -> None:
        """``encryption`` has the keys for the content of a file whose name ends in ``.age``.

        None leaves the encryption to the writer of the content.  In a dry run, the content is
        dropped.
        """
        self.name, self.label = file.name, file.label
        self._file = file
        self._replace = replace
        self._encryption = encryption
        self._dry_run = dry_run
        self._content: _Content | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard()

    def create(self, mode: int | None = None, *, replace: bool = True) -> NewFile:  # noqa: ARG002
        self._discard()
        new: NewFile = _Nothing()
        if not self._dry_run:
            new = self._file.create(mode, replace=self._replace)
        try:
            self._content = _Content(new, self.name, self._encryption)
        except BaseException:
            new.discard()
            raise
        return self._content

    def publish(self) -> None:
        """Give the content the name of the file; do nothing if no whole content was written.

        Raises:
            UsageError: the file exists now, and is not to be replaced.
            Unavailable: the place of the file refuses.
        """
        if self._content is not None and self._content.whole:
            self._content.new.commit()

    def confirm(self) -> None:
        """Check that the place has the content, before older files are removed.

        Raises:
            Unavailable: the place has something else.
        """
        if self._content is not None and self._content.whole:
            self._content.new.confirm()

    @property
    def bytes(self) -> int | None:
        """The size of the content so far; None without content, and in a dry run."""
        return None if self._content is None or self._dry_run else self._content.bytes

    def _discard(self) -> None:
        if self._content is not None:
            self._content.drop()
            self._content = None

    # The file is absent for whoever writes it.

    @property
    def identity(self) -> str:
        return f"new:{self._file.identity}"

    def stamp(self) -> Hashable | None:
        return None

    def open(self) -> int:
        raise NotFound(f"{self.label} does not exist")

    @property
    def spool_folder(self) -> Path | None:
        return self._file.spool_folder

    @property
    def on_disk(self) -> Path:
        return self._file.on_disk


class _Content(NewFile):
    """The content of an ``Output``, which waits for the end of the export."""

    def __init__(self, new: NewFile, name: str, encryption: Encryption | None) -> None:
        """``encryption`` is None if the content is written as it is, whatever the name."""
        self.new = new
        self.whole = False
        self.bytes = 0
        """The size of the content so far."""
        self._layers = ExitStack()
        self._sink: Sink = _Counted(self)
        if encryption is not None:
            self._sink = self._layers.enter_context(encrypted(name, self._sink, encryption))

    def write(self, data: bytes | memoryview) -> int:
        self._sink.write(data)
        return len(data)

    def flush(self) -> None:
        self._sink.flush()

    def commit(self) -> None:
        self._layers.close()
        self.whole = True

    def discard(self) -> None:
        if not self.whole:
            self.drop()

    def drop(self) -> None:
        """Discard the content, even if it is whole; do nothing if it has its name already."""
        with suppress(_DiscardedError), self._layers:
            raise _DiscardedError  # so that an encryptor stops without an end
        self.new.discard()


class _DiscardedError(Exception):
    """The content is discarded."""


class _Counted:
    """The sink below all layers of a content."""

    def __init__(self, content: _Content) -> None:
        self._content = content

    def write(self, data: bytes | memoryview) -> None:
        self._content.new.write(data)
        self._content.bytes += len(data)

    def flush(self) -> None:
        self._content.new.flush()


class Stream(File):
    """The standard output, a pipe or a device: gets a whole content, never a part."""

    def __init__(self, name: str, label: str, stream: Callable[[], BinaryIO]) -> None:
        """``name`` has the extension for the content; ``stream`` opens or returns the stream."""
        self.name, self.label = name, label
        self._stream = stream

    def create(self, mode: int | None = None, *, replace: bool = True) -> NewFile:  # noqa: ARG002
        return _Spooled(self.label, self._stream)

    @property
    def identity(self) -> str:
        return f"stream:{self.label}"

    def stamp(self) -> Hashable | None:
        return None

    def open(self) -> int:
        raise NotFound(f"{self.label} is not a file")


class _Spooled(NewFile):
    """A content in a temporary file until ``commit``, which copies it to a stream."""

    def __init__(self, label: str, stream: Callable[[], BinaryIO]) -> None:
        self._label = label
        self._open_stream = stream
        self._folder = scratch()
        with system_errors(self._folder, "write"):
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by discard()

    def write(self, data: bytes | memoryview) -> int:
        with system_errors(self._folder, "write"):
            return self._file.write(data)

    def commit(self) -> None:
        try:
            self._file.seek(0)
            stream = self._open_stream()
            shutil.copyfileobj(self._file, stream)
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise
            raise Unavailable(f"{self._label} cannot be written: {error.strerror}") from error

    def discard(self) -> None:
        end(self._file)


class _Nothing(NewFile):
    """The content of a dry run."""

    def write(self, data: bytes | memoryview) -> int:
        return len(data)

    def commit(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


@contextmanager
def text_of(new: NewFile) -> Iterator[TextIO]:
    """Yield a text file in UTF-8 that writes to ``new``, without conversion of line ends.

    The ``buffer`` of the text file takes bytes.  At the end of the block, all text is in ``new``.
    """
    raw: Any = _Raw(new)
    with io.TextIOWrapper(io.BufferedWriter(raw, _BUFFER), encoding="utf-8", newline="\n") as file:
        try:
            yield file
        except BaseException:
            raw.drops = True
            raise


class _Raw(io.RawIOBase):
    """A binary file that writes to a ``NewFile``."""

    def __init__(self, new: NewFile) -> None:
        self._new = new
        self._at = 0
        self.drops = False
        """True if the content is discarded, so that buffered data need not be written."""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        if not self.drops:
            self._new.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at
