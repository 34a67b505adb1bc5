"""The folder of blobs, on a disk or in object storage."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path

from memctl import zstd
from memctl.errors import BadData, NotFound, UsageError
from memctl.location import redact, visible
from memctl.ops.offload.pieces import PIECE
from memctl.ops.offload.references import NAME
from memctl.ops.offload.slim import Blob
from memctl.registry import file_of, is_object
from memctl.storekit.files import refuse_shared, system_errors
from memctl.storekit.named_file import LocalFile, NamedFile

_ZSTD = ".zst"
_LEVEL: dict[int, int] = {zstd.CompressionParameter.compression_level: 3}


class Blobs:
    """The blobs in a folder, or under the prefix of keys in a bucket.

    A blob is a file named by its digest (``references.NAME``), or by that name and ``.zst`` if it
    is compressed.  The methods block.  All raise MemctlError if the place cannot be reached or
    refuses the access.
    """

    def __init__(self, place: str) -> None:
        """``place`` is the path of the folder, or a URL such as ``s3://BUCKET/PREFIX``.

        Raises:
            UsageError: the URL is not that of object storage.
        """
        if is_object(place):
            url, mark, query = place.partition("?")
            scheme, _, rest = url.partition("://")
            self._any = file_of(f"{scheme}://{rest.rstrip('/')}/any{mark}{query}")
            self._folder = None
            shown, mark, query = self._any.label.partition("?")
            self.label = f"{shown.removesuffix('/any')}{mark}{query}"
        elif "://" in place:
            raise UsageError(
                f"{redact(place)} is neither a folder nor a place in object storage",
                "name a folder, or s3://BUCKET/PREFIX",
            )
        else:
            self._folder = Path(place).expanduser()
            self._any = LocalFile(self._folder / "any", follows=False)
            self.label = visible(place)
        self._whole: set[str] = set()
        """The names of files that were written or found undamaged; no need to look again."""

    def put(self, blob: Blob) -> bool:
        """Store a blob durably; return False if the folder has it already, undamaged.

        Raises:
            Unavailable: the place refuses the blob, or has no room for it.
        """
        if not self._whole:
            self._make_folder()
        names = (blob.name,) if blob.linked else (blob.name, blob.name + _ZSTD)
        if any(map(self._is_there, names)):
            return False
        packed = iter(()) if blob.linked else _compressed(blob.pieces())
        begin = next(packed, None)
        if begin is not None and len(begin) < len(next(blob.pieces())):
            self._write(blob.name + _ZSTD, chain([begin], packed))
        else:
            self._write(blob.name, blob.pieces())
        return True

    def get(self, name: str) -> Iterator[bytes]:
        """Yield the content of the blob ``name`` in pieces; it is whole if no error follows.

        Raises:
            NotFound: there is no such blob.
            BadData: the blob is damaged.
        """
        for stored in (name, name + _ZSTD):
            file = self._any.sibling(stored)
            if file.stamp() is None:
                continue
            yield from _content(file)
            return
        raise NotFound(
            f"there is no blob {name} in {self.label}",
            "name the folder that memctl offload wrote to with --from",
        )

    def sizes(self, before: float = math.inf) -> dict[str, int]:
        """Return the stored size in bytes of each blob, by its name without a compression.

        Blobs that were written after ``before``, in seconds since 1970, are left out.
        """
        found: dict[str, int] = {}
        young: set[str] = set()
        for file in self._any.siblings():
            name = file.name.removesuffix(_ZSTD)
            if NAME.fullmatch(name):
                found[name] = found.get(name, 0) + file.bytes
                young |= {name} if file.written > before else set()
        return {name: size for name, size in found.items() if name not in young}

    def remove(self, name: str) -> None:
        """Remove the blob ``name``; do nothing if the place has no such blob."""
        for stored in (name, name + _ZSTD):
            self._any.sibling(stored).remove()

    def _make_folder(self) -> None:
        """Create the folder, unless it exists, and check it; object storage needs none."""
        if self._folder is not None:
            with system_errors(self._folder, "create"):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_shared(self._folder)

    def _is_there(self, name: str) -> bool:
        if name in self._whole:
            return True
        file = self._any.sibling(name)
        try:
            if file.stamp() is None:
                return False
            deque(_content(file), 0)
        except BadData:
            return False
        self._whole.add(name)
        return True

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        with self._any.sibling(name).create() as file:
            for piece in pieces:
                file.write(piece)
            file.commit()
            file.confirm()
        self._whole.add(name)


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each piece compressed, and the end of the frame."""
    frame = zstd.ZstdCompressor(options=_LEVEL)
    for piece in pieces:
        yield frame.compress(piece, frame.FLUSH_BLOCK)
    yield frame.flush()


def _content(file: NamedFile) -> Iterator[bytes]:
    """Yield the decompressed content of a blob in pieces.

    Raises:
        BadData: the name has another digest; known only at the end.
    """
    digest = sha256()
    with os.fdopen(file.open(), "rb") as source, suppress(zstd.ZstdError, EOFError):
        stream = zstd.ZstdFile(source) if file.name.endswith(_ZSTD) else source
        while piece := stream.read(PIECE):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != file.name.partition(".")[0]:
        raise BadData(
            f"{file.label} is damaged: its content does not have this digest",
            "restore the file from a backup",
        )
