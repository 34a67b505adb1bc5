"""Streams that compress and decompress: gzip and zstd."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Protocol, cast

from memctl.encryption import plain_name
from memctl.errors import MemctlError
from memctl.machine import zstd
from memctl.storekit.encrypted import Sink

_BUFFER = 1024 * 1024
SNIFFED = 4
"""The number of bytes at the beginning of data that identify its compression."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL = 6
_ZSTD_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 27}
"""The largest accepted window: 128 MiB, the default of zstd."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)
"""Errors raised when compressed data is truncated or damaged."""


class Input(Protocol):
    """The input of an archive: a file, or a decompressor that reads a file."""

    def read(self, size: int, /) -> bytes | None:
        """Return the next bytes, at most ``size``; empty at the end."""


class Output(Sink, Protocol):
    """A sink that must be closed after the last write."""

    def close(self) -> object:
        """Write buffered data to the underlying sink, which stays open."""


def decompressed(raw: io.RawIOBase | io.BufferedReader, start: bytes) -> Input:
    """Return a stream of the decompressed data; ``raw`` itself if the data is not compressed.

    ``start`` has the first bytes of the data, which identify the compression.
    """
    if start.startswith(_GZIP):
        reader = io.BufferedReader(raw, _BUFFER) if isinstance(raw, io.RawIOBase) else raw
        return gzip.GzipFile(fileobj=reader, mode="rb")
    if start.startswith(_ZSTD):
        return zstd.ZstdFile(cast(IO[bytes], raw), options=_WINDOW)
    return raw


def extension_of(start: bytes) -> str:
    """Return ``.gz``, ``.zst`` or an empty text for a file with the first bytes ``start``."""
    return ".gz" if start.startswith(_GZIP) else ".zst" if start.startswith(_ZSTD) else ""


def _output(name: str, sink: Sink) -> Output:
    name = plain_name(name).lower()
    if name.endswith(".gz"):
        # Without a time and a name, equal memories give equal files.
        return gzip.GzipFile(
            filename="",
            mode="wb",
            compresslevel=_GZIP_LEVEL,
            fileobj=cast(IO[bytes], sink),
            mtime=0,
        )
    if name.endswith(".zst"):
        return zstd.ZstdFile(cast(IO[bytes], sink), "w", options=_ZSTD_OPTIONS)
    return _Plain(sink)


class _Plain:
    """A sink without compression."""

    def __init__(self, sink: Sink) -> None:
        self.write = sink.write
        self.flush = sink.flush

    def close(self) -> None:
        self.flush()


@contextmanager
def compressed(name: str, sink: Sink) -> Iterator[Sink]:
    """Yield a compressor that writes to ``sink``; ``sink`` itself for data without compression.

    The extension of the file name ``name`` decides, without ``.age``: ``.gz``, ``.zst``, or any
    other for no compression.  The sink stays open.
    """
    output = _output(name, sink)
    try:
        yield output
    except BaseException:
        with suppress(MemctlError, OSError, ValueError):  # the output is discarded
            output.close()
        raise
    output.close()
