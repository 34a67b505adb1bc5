"""Writes batches of messages into an index: in this process, or in a separate process.

Reading messages, preparing texts and indexing words can use two cores, and one Python process
uses one.  A second process, ``python -m memctl.index.writer``, therefore writes the first index of
a large store.  The process reads batches from its standard input, and ends with the input.
"""

from __future__ import annotations

import pickle
import signal
import struct
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from memctl.concurrency import in_thread
from memctl.errors import MemctlError, Unavailable
from memctl.index.database import Batch, IndexFile
from memctl.index.entries import pack

_LENGTH = struct.Struct(">Q")
_DONE = b"done"
_PIPE_BYTES = 1 << 20


class Writer:
    """Writes batches in a thread of this process."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index

    async def write(self, batch: Batch) -> None:
        """Write a batch.

        Raises:
            Unavailable: the disk is full.
            DamagedIndex: a block to be removed cannot be read.
        """
        await in_thread(partial(self._write, batch), self._index.interrupt)

    def _write(self, batch: Batch) -> None:
        self._index.apply(batch, pack(batch))


class WriterProcess:
    """Writes batches of a new index in a separate process, which alone uses the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        command = [sys.executable, "-m", __name__, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pipesize=_PIPE_BYTES
        )

    async def write(self, batch: Batch) -> None:
        """Send a batch.

        Raises:
            Unavailable: the process has ended, perhaps because the disk is full.
        """
        await in_thread(partial(self._send, pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)))

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            for part in (_LENGTH.pack(len(content)), content):
                view = memoryview(part)
                while view:
                    view = view[self._process.stdin.write(view) :]
        except OSError as error:
            raise self._failed() from error

    async def finish(self) -> None:
        """Wait until all batches are written.

        Raises:
            Unavailable: the process failed.
        """
        await in_thread(self._finish)

    def _finish(self) -> None:
        self._send(b"")
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait() or self._said() != _DONE:
            raise self._failed()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _said(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read() or b""

    def _failed(self) -> MemctlError:
        self._process.wait()
        message, _, hint = self._said().decode(errors="replace").partition("\n")
        if not message:
            message = f"cannot write the index {self._path}: its writer was ended"
        return Unavailable(message, hint or None)


def serve(path: Path, stream: BinaryIO) -> None:
    """Write the batches of a stream into a new index.

    A batch is indexed while the next batch is prepared.

    Raises:
        MemctlError: the disk is full, or the stream ended too early.
    """
    index = IndexFile.resumed(path)
    with ThreadPoolExecutor(1) as pool:
        writing: Future[None] | None = None
        while content := _received(stream):
            batch: Batch = pickle.loads(content)
            del content
            blocks = pack(batch)
            if writing is not None:
                writing.result()
            writing = pool.submit(index.apply, batch, blocks)
        if writing is not None:
            writing.result()
    index.commit()
    index.close()


def _received(stream: BinaryIO) -> bytes:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise Unavailable("memctl ended")
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        raise Unavailable("memctl ended")
    return content


def main() -> int:
    """Run the writer process; the end of the input, not a signal, ends the process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (path,) = sys.argv[1:]
    try:
        serve(Path(path), sys.stdin.buffer)
    except MemctlError as error:
        sys.stdout.write(f"{error.message}\n{error.hint or ''}")
        return 1
    sys.stdout.buffer.write(_DONE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
