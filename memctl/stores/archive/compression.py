"""Streams that compress and decompress: gzip and zstd."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Protocol, cast

from memctl import zstd
from memctl.errors import MemctlError

_BUFFER = 1024 * 1024
SNIFFED = 8
"""The bytes at the beginning of a file that tell how it is compressed."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL = 6
_ZSTD_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 27}
"""The largest window that is taken: 128 MiB, as zstd itself does unless told otherwise."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)
"""Errors of reading compressed data that is truncated or damaged."""


class Sink(Protocol):
    """The output of an archive: a file, or a compressor on top of one."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of the data."""

    def flush(self) -> object:
        """Hand on what is buffered."""


class Input(Protocol):
    """The input of an archive: a file, or a decompressor on top of one."""

    def read(self, size: int, /) -> bytes | None:
        """Return the next bytes, at most ``size``; none at the end."""


class Output(Sink, Protocol):
    """A sink that is closed."""

    def close(self) -> object:
        """Write what is left, and leave what is below open."""


def decompressed(raw: io.RawIOBase, start: bytes) -> Input:
    """Return the content of a stream that begins with ``start``, whatever its name."""
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=io.BufferedReader(raw, _BUFFER), mode="rb")
    if start.startswith(_ZSTD):
        return zstd.ZstdFile(cast(IO[bytes], raw), options=_WINDOW)
    return raw


def extension_of(start: bytes) -> str:
    """Return the extension of the compression that a file has, which begins with ``start``."""
    return ".gz" if start.startswith(_GZIP) else ".zst" if start.startswith(_ZSTD) else ""


def _output(name: str, sink: Sink) -> Output:
    if name.lower().endswith(".gz"):
        # With no time and no name in it, the same memories make the same file.
        return gzip.GzipFile(
            filename="",
            mode="wb",
            compresslevel=_GZIP_LEVEL,
            fileobj=cast(IO[bytes], sink),
            mtime=0,
        )
    if name.lower().endswith(".zst"):
        return zstd.ZstdFile(cast(IO[bytes], sink), "w", options=_ZSTD_OPTIONS)
    return _Plain(sink)


class _Plain:
    """No compression."""

    def __init__(self, sink: Sink) -> None:
        self.write = sink.write
        self.flush = sink.flush

    def close(self) -> None:
        self.flush()


@contextmanager
def compressed(name: str, sink: Sink) -> Iterator[Sink]:
    """Return the compressor that the extension of a path asks for; the sink stays open."""
    output = _output(name, sink)
    try:
        yield output
    except BaseException:
        with suppress(MemctlError, OSError, ValueError):  # it will be thrown away
            output.close()
        raise
    output.close()
