"""The references to blobs in messages: a line of text, or a URL.

A reference names the blob by its file name: the SHA-256 of the content in hexadecimal, and an
extension that says what the content is.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

MARK = b"memctl rehydrate restores"
"""Bytes of the JSON text of every message with a reference in a text."""
NAME = re.compile(r"[0-9a-f]{64}\.[a-z0-9]+")
"""The file name of a blob, without the extension of a compression."""
TEXT, LITERAL, BASE64 = "txt", "json", "b64"
"""Extensions of blobs: a text, a string as JSON has it, and base64 that is not in standard form."""
EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "video/mp4": "mp4",
    "application/pdf": "pdf",
}
"""The extensions of media that programs tell the type from, by media type.

Of two types with one extension, the last one is the type of a URL in a dialect whose URLs have no
media type: AgentScope 1.x names MP3 ``audio/mp3`` and knows no other name.
"""
OTHER = "bin"
"""The extension of all other media."""
IN_URL = re.compile(rb"\.(?:" + "|".join(EXTENSIONS.values()).encode() + rb")\"")
"""The end of a string that may be the URL of a blob.  To look for a digest is ten times slower."""
_NAMES = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}\.[a-z0-9]+")
_TYPES = {extension: media_type for media_type, extension in EXTENSIONS.items()}
_DATA = b'@"'
"""The mark for base64 data and the quote after them, in the block of a reference."""

_END_OF_TEXT = re.compile(
    r"\n\[memctl: (?P<size>[\d,]+) bytes, offloaded as (?P<name>[0-9a-f]{64}\.[a-z0-9]+) "
    r"from [a-z0-9-]+; memctl rehydrate restores them\]\Z"
)
_MEDIA = re.compile(
    r"\[memctl: (?P<type>\S+), (?P<size>[\d,]+) bytes, offloaded as "
    r"(?P<name>[0-9a-f]{64}\.[a-z0-9]+) from (?P<dialect>[a-z0-9-]+); "
    r"memctl rehydrate restores this block: (?P<block>\{.*@\".*\})\]",
    re.DOTALL,
)
_ORIGIN = re.compile(
    rb"offloaded as [0-9a-f]{64}\.[a-z0-9]+ from ([a-z0-9-]+); memctl rehydrate restores"
)
_URL = re.compile(r"(?:.*/)?(?P<name>[0-9a-f]{64}\.(?P<extension>[a-z0-9]+))", re.DOTALL)


class MediaReference(NamedTuple):
    """A reference to media in a text that stands where the block with the media stood.

    ``block`` is the JSON of that block in the dialect ``dialect``, without the base64 data.
    """

    name: str
    media_type: str
    dialect: str
    block: str

    def text(self, size: int) -> str:
        """Return the text; ``size`` is the size of the decoded media in bytes."""
        return (
            f"[memctl: {self.media_type}, {size:,} bytes, offloaded as {self.name} from "
            f"{self.dialect}; memctl rehydrate restores this block: {self.block}]"
        )

    @property
    def is_whole(self) -> bool:
        """False if the block is no JSON, since the text holds more than the reference."""
        try:
            json.loads(self.block)
        except ValueError:
            return False
        return True

    def around_data(self) -> tuple[bytes, bytes]:
        """Return the JSON of the block before and after the base64 data."""
        before, _, after = self.block.encode("utf-8", "surrogatepass").partition(_DATA)
        return before, b'"' + after


def without_data(before: bytes, after: bytes) -> str:
    """Return the JSON of a block for ``MediaReference``: the bytes before and after the data."""
    return b"".join((before, _DATA, after[1:])).decode("utf-8", "surrogatepass")


def end_of_text(name: str, size: int, dialect: str) -> str:
    """Return the end of a shortened text: the reference to a blob of ``size`` bytes."""
    return (
        f"\n[memctl: {size:,} bytes, offloaded as {name} from {dialect}; "
        "memctl rehydrate restores them]"
    )


def text_reference(text: str) -> tuple[str, str] | None:
    """Return the name of the blob that the end of a text refers to, and the text before that end.

    None if the text does not end with a reference.
    """
    found = _END_OF_TEXT.search(text) if text.endswith("restores them]") else None
    return (found["name"], text[: found.start()]) if found else None


def media_of_text(text: str) -> MediaReference | None:
    """Return the reference to media that a text is; None if the text is anything else."""
    found = _MEDIA.fullmatch(text) if text.startswith("[memctl: ") else None
    if found is None:
        return None
    return MediaReference(found["name"], found["type"], found["dialect"], found["block"])


def is_reference(text: str) -> bool:
    """Return whether a text is, or ends with, a reference; a URL of a blob is one."""
    known = text_reference(text) or media_of_text(text) or name_of_url(text)
    return known is not None


def origins(text: bytes) -> set[str]:
    """Return the names of the dialects that the references in a message name."""
    return {name.decode() for name in _ORIGIN.findall(text)} if MARK in text else set()


def names_in(*texts: bytes) -> set[str]:
    """Return all names in the bytes of messages that may be names of blobs."""
    return {name.decode() for text in texts for name in _NAMES.findall(text)}


def name_of_url(url: str) -> tuple[str, str] | None:
    """Return the name of the blob that a URL refers to, and the media type; None for other URLs."""
    found = _URL.fullmatch(url)
    if found is None or found["extension"] not in _TYPES:
        return None
    return found["name"], _TYPES[found["extension"]]
