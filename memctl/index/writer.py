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

from memctl.errors import MemctlError, Unavailable
from memctl.index.database import Batch, IndexFile
from memctl.index.entries import pack
from memctl.machine.concurrency import in_thread

_LENGTH = struct.Struct(">Q")
_DONE = b"done"
_PIPE_BYTES = 1 << 20


class Writer:
    """Writes batches of messages into a search index, in a thread of this process."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index

    async def write(self, batch: Batch) -> None:
        """Write a batch of messages into the index.

        Raises:
            Unavailable: the disk is full.
            DamagedIndex: a block of messages to be removed cannot be read.
        """
        await in_thread(partial(self._write, batch), self._index.interrupt)

    def _write(self, batch: Batch) -> None:
        self._index.apply(batch, pack(batch))


class WriterProcess:
    """A separate process that writes batches into a new search index.

    No other process uses the index meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        command = [sys.executable, "-m", __name__, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pipesize=_PIPE_BYTES
        )

    async def write(self, batch: Batch) -> None:
        """Send a batch of messages to the writing process.

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
        """Wait until the process has written all batches.

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
        """Kill the writing process."""
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
    """Write batches from a stream into the unfinished search index at ``path``.

    A thread indexes a batch while the texts of the next batch are prepared.

    Raises:
        MemctlError: the disk is full, or the stream ended before its end mark, an empty batch.
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
    """Run the writing process until its input ends; ignore signals.  Return the exit code."""
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
