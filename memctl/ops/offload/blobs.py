"""The folder of blobs, on a disk or in object storage."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path

from memctl.errors import BadData, NotFound, UsageError
from memctl.location import redact, visible
from memctl.machine import zstd
from memctl.ops.offload.pieces import PIECE
from memctl.ops.offload.references import NAME
from memctl.ops.offload.slim import Blob
from memctl.registry import file_of, is_object
from memctl.storekit.files import refuse_shared, system_errors
from memctl.storekit.named_file import LocalFile, NamedFile

_ZSTD = ".zst"
_OWNER = re.compile(rf"({NAME.pattern})\.[0-9a-f]{{32}}\.user")
"""The file name that says that a user had the content of a blob."""
_LEVEL: dict[int, int] = {zstd.CompressionParameter.compression_level: 3}


class Blobs:
    """The blobs in a folder, or under the prefix of keys in a bucket.

    A blob is a file named by its digest (``references.NAME``), or by that name and ``.zst`` if it
    is compressed.  An empty file beside it, named by the blob and a digest of a user, says that a
    message of this user had the content.  Only then may messages of the user get it back: anybody
    can write a reference.

    The methods block.  All raise MemctlError if the place cannot be reached or refuses the access.
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
        self._owners: dict[str, list[str]] | None = None
        """The names of the files that name users, by blob; None before the first removal."""

    def put(self, blob: Blob, user: str) -> bool:
        """Store a blob of a user durably; return False if the folder has it already, undamaged.

        Raises:
            Unavailable: the place refuses the blob, or has no room for it.
        """
        if not self._whole:
            self._make_folder()
        names = (blob.name,) if blob.linked else (blob.name, blob.name + _ZSTD)
        is_new = not any(map(self._is_there, names))
        if is_new:
            self._add(blob)
        if not self._is_owned(owner := _owner(blob.name, user)):
            self._write(owner, ())
        return is_new

    def _add(self, blob: Blob) -> None:
        packed = iter(()) if blob.linked else _compressed(blob.pieces())
        begin = next(packed, None)
        if begin is not None and len(begin) < len(next(blob.pieces())):
            self._write(blob.name + _ZSTD, chain([begin], packed))
        else:
            self._write(blob.name, blob.pieces())

    def share(self, name: str, user: str, new: str) -> None:
        """Note that another user had the content of a blob, if ``user`` had it.

        Raises:
            Unavailable: the place refuses the note.
        """
        if self._is_owned(_owner(name, user)) and not self._is_owned(owner := _owner(name, new)):
            self._write(owner, ())

    def get(self, name: str, user: str) -> Iterator[bytes]:
        """Yield the content of the blob ``name`` in pieces; it is whole if no error follows.

        ``user`` is the user whose message gets the content; empty if the store has no users.

        Raises:
            NotFound: there is no such blob.
            BadData: the blob is damaged, or no message of the user had the content.
        """
        # A store without users may have had the messages before or after this store.
        owners = (_owner(name, one) for one in dict.fromkeys((user, "")))
        if user and not any(map(self._is_owned, owners)):
            raise BadData(
                f"the content {name} was not offloaded from a message of {visible(user)!r}",
                "rehydrate the messages from which it was offloaded",
            )
        yield from self.content(name)

    def has(self, name: str, user: str) -> bool:
        """Return whether a message of a user had the content of the blob ``name``."""
        return self._is_owned(_owner(name, user))

    def content(self, name: str) -> Iterator[bytes]:
        """Yield the content of the blob ``name`` in pieces, whoever had it; as ``get``.

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
        if self._owners is None:
            self._owners = defaultdict(list)
            for file in self._any.siblings():
                if found := _OWNER.fullmatch(file.name):
                    self._owners[found[1]].append(file.name)
        for owner in self._owners[name]:
            self._any.sibling(owner).remove()

    def _make_folder(self) -> None:
        """Create the folder, unless it exists, and check it; object storage needs none."""
        if self._folder is not None:
            with system_errors(self._folder, "create"):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_shared(self._folder)

    def _is_owned(self, owner: str) -> bool:
        if owner not in self._whole and self._any.sibling(owner).stamp() is not None:
            self._whole.add(owner)
        return owner in self._whole

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


def _owner(name: str, user: str) -> str:
    """Return the name of the file that says that a user had the content of a blob."""
    said = f"{user}\0{name}".encode("utf-8", "surrogatepass")
    return f"{name}.{sha256(said).hexdigest()[:32]}.user"


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
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
