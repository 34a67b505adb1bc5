"""Large contents taken out of one message, and put back.

Only the bytes of the large contents change.  ``slim`` proves that ``restored`` gives back the same
bytes, and leaves in the message what it cannot prove.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from memctl.dialects.view import (
    Block,
    Dialect,
    MediaBlock,
    MessageView,
    NotAnObject,
    TextBlock,
    ToolResultBlock,
    object_of,
)
from memctl.errors import BadData
from memctl.json_located import LocatedObject, LocatedText, Span, located, spliced, strings
from memctl.ops.offload import references
from memctl.ops.offload.references import MediaReference


class Rule(NamedTuple):
    """The limit of large contents, and the part of them that stays in the message.

    ``larger`` is the size in bytes of the stored JSON above which a content is taken out.  ``keep``
    is the size in bytes of the beginning of a text that stays.  ``url_prefix`` begins the URLs of
    media, if agents can read the blobs; else a text takes the place of media.
    """

    larger: int
    keep: int
    url_prefix: str = ""


class Blob(NamedTuple):
    """A content that was taken out: its file name without a compression, and its bytes.

    A ``linked`` blob is read by agents, at a URL, and must not be compressed.
    """

    name: str
    data: bytes
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Slim:
    """A message without its large contents, and these contents."""

    text: bytes
    blobs: list[Blob] = field(default_factory=list)
    left: int = 0
    """The number of large contents that stay, since they could not be restored exactly."""


Fetch = Callable[[str], bytes]
"""Returns the content of the blob with a name; raises MemctlError without such a blob."""


class _Piece(NamedTuple):
    """A part of a message to replace, and the blob with what it holds."""

    span: Span
    new: bytes
    blob: Blob


def slim(dialect: Dialect, text: bytes, rule: Rule) -> Slim:
    """Take the large contents out of the message ``text``.

    A message that is damaged, or nested too deep, stays unchanged.
    """
    if len(text) <= rule.larger:
        return Slim(text)
    pieces, left = _pieces(dialect, text, rule)
    if not _is_proven(dialect, text, pieces):
        some = [piece for piece in pieces if _is_proven(dialect, text, [piece])]
        some = some if _is_proven(dialect, text, some) else []
        left += len(pieces) - len(some)
        pieces = some
    if not pieces:
        return Slim(text, left=left)
    new = spliced(text, [(piece.span, piece.new) for piece in pieces])
    # A content may be linked at one place and not at another: agents read it, so the link counts.
    by_link = sorted((piece.blob for piece in pieces), key=lambda blob: blob.linked)
    blobs = {blob.name: blob for blob in by_link}
    return Slim(new, list(blobs.values()), left)


def _pieces(dialect: Dialect, text: bytes, rule: Rule) -> tuple[list[_Piece], int]:
    """Return the parts to replace, and the number of large contents that cannot be replaced."""
    pieces: list[_Piece] = []
    left = 0
    view = _view(dialect, text)
    for block, in_result in _walk(view) if view else ():
        if _is_large(block, in_result, rule.larger):
            piece = _piece(dialect, text, block, rule)
            if piece is None:
                left += 1
            else:
                pieces.append(piece)
    return pieces, left


def restored(dialect: Dialect, text: bytes, fetch: Fetch) -> bytes:
    """Put the contents of blobs back into the message ``text``.

    Raises:
        BadData: a reference cannot be replaced in this dialect, or is quoted.
        MemctlError: as ``fetch``.
    """
    splices = [(span, make(fetch(name))) for name, span, make in _references(dialect, text)]
    return spliced(text, splices) if splices else text


def _restores(dialect: Dialect, text: bytes, fetch: Fetch, wanted: bytes) -> bool:
    """Return whether ``restored`` gives ``wanted``; needs little RAM besides one content.

    Raises:
        BadData, MemctlError: as ``restored``.
    """
    at = start = 0
    for name, span, make in sorted(_references(dialect, text), key=lambda one: one[1]):
        for piece in (text[start : span.start], make(fetch(name))):
            if not wanted.startswith(piece, at):
                return False
            at += len(piece)
        start = span.stop
    return len(wanted) - at == len(text) - start and wanted.endswith(text[start:])


def may_refer(text: bytes) -> bool:
    """Return False for most messages without a reference, in little time."""
    return references.MARK in text or references.IN_URL.search(text) is not None


def _view(dialect: Dialect, text: bytes) -> MessageView | None:
    try:
        return dialect.view_of(object_of(located(text)))
    except (ValueError, NotAnObject):
        return None


def _walk(view: MessageView) -> Iterator[tuple[Block, bool]]:
    """Yield the blocks of a message, and whether each belongs to the result of a tool."""
    for block in view.blocks:
        if isinstance(block, ToolResultBlock):
            for inner in block.output:
                yield inner, True
        else:
            yield block, False


def _is_large(block: Block, in_result: bool, larger: int) -> bool:
    match block:
        case TextBlock(text) if in_result:
            return len(text) > larger or len(text.encode("utf-8", "surrogatepass")) > larger
        case MediaBlock(data=str(data)):
            return len(data) > larger
    return False


def _piece(dialect: Dialect, text: bytes, block: Block, rule: Rule) -> _Piece | None:
    match block:
        case TextBlock(LocatedText() as said):
            return _of_text(text, said, rule.keep)
        case MediaBlock(data=str(data), value=LocatedObject() as value):
            if found := _literal(value, data):
                return _of_media(dialect, text, block, *found, rule.url_prefix)
    return None


def _of_text(text: bytes, said: LocatedText, keep: int) -> _Piece:
    start, stop = said.span
    own = _in_json(said)
    is_own = len(own) == stop - start and text.startswith(own, start)
    del own  # a large text is not held more often than needed
    data = said.encode("utf-8", "surrogatepass")
    size = len(data)
    blob = _blob(data, references.TEXT) if is_own else _blob(text[start:stop], references.LITERAL)
    end = _in_json(references.end_of_text(blob.name, size))
    begin = _beginning(text[start : start + keep + 1], keep)
    return _Piece(said.span, begin + end[1:], blob)


def _beginning(literal: bytes, size: int) -> bytes:
    """Return the first ``size`` bytes of a JSON string, or a few less, without the end quote."""
    for stop in range(size + 1, 0, -1):
        start = literal[:stop]
        try:
            text = json.loads((start + b'"').decode())
        except ValueError:  # in the middle of a character or of an escape
            continue
        if not text or not "\ud800" <= text[-1] <= "\udbff":
            return start
    return literal[:1]


def _literal(block: LocatedObject, data: str) -> tuple[LocatedText, str] | None:
    """Return the string of a block that holds base64 data, and the data as the string has them.

    The string is the data, or a ``data:`` URL.  The data may have the alphabet of URLs, which the
    view of ADK's messages replaces.
    """
    for found in strings(block):
        if found.startswith("data:") and found.endswith(data) and found[-len(data) - 1] == ",":
            return found, data
        if found == data or found.replace("-", "+").replace("_", "/") == data:
            return found, found
    return None


def _of_media(
    dialect: Dialect, text: bytes, media: MediaBlock, literal: LocatedText, said: str, prefix: str
) -> _Piece | None:
    start, stop = literal.span.stop - 1 - len(said), literal.span.stop - 1
    if stop - literal.span.start - 1 != len(literal):
        return None  # escaped, or not ASCII
    data = memoryview(text)[start:stop]
    content = _decoded(data)
    extension = references.EXTENSIONS.get(media.media_type or "", references.OTHER)
    blob = _blob(content, extension) if content else _blob(bytes(data), references.BASE64)
    if prefix and content and extension != references.OTHER:
        blob = blob._replace(linked=True)
        url = prefix + blob.name
        swap = dialect.linked(media.value, url)
        piece = None
        if swap is not None and isinstance(swap.old, LocatedObject):
            piece = _Piece(swap.old.span, _object(swap.new, text, swap.old.span), blob)
        elif literal != said:
            piece = _Piece(literal.span, _in_json(url), blob)
        if piece is not None and _is_proven(dialect, text, [piece]):
            return piece
        blob = blob._replace(linked=False)
    span = media.value.span
    block = references.without_data(text[span.start : start], text[stop : span.stop])
    reference = MediaReference(blob.name, media.media_type or "?", dialect.name, block)
    line = dialect.text_block(reference.text(len(content or data)), media.value)
    return _Piece(span, _object(line, text, span), blob)


def _decoded(data: memoryview) -> bytes | None:
    """Return decoded base64; None if ``data`` is not the standard form of its content."""
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        return None
    if len(data) != -(-len(content) // _BYTES) * _CHARACTERS:
        return None
    for number, start in enumerate(range(0, len(content), _BYTES * _PIECE)):
        piece = base64.b64encode(memoryview(content)[start : start + _BYTES * _PIECE])
        at = number * _CHARACTERS * _PIECE
        if bytes(data[at : at + _CHARACTERS * _PIECE]) != piece:
            return None
    return content


_BYTES, _CHARACTERS = 3, 4
"""So many bytes are so many characters of base64."""
_PIECE = 1 << 18


def _blob(data: bytes, extension: str) -> Blob:
    return Blob(f"{sha256(data).hexdigest()}.{extension}", data)


def _is_proven(dialect: Dialect, text: bytes, pieces: list[_Piece]) -> bool:
    new = spliced(text, [(piece.span, piece.new) for piece in pieces])
    blobs = {piece.blob.name: piece.blob.data for piece in pieces}
    try:
        return _restores(dialect, new, blobs.__getitem__, text)
    except (BadData, KeyError):
        return False


def _references(
    dialect: Dialect, text: bytes
) -> Iterator[tuple[str, Span, Callable[[bytes], bytes]]]:
    """Yield the references of a message: the blob, the bytes to replace, and what makes new ones.

    Raises:
        BadData: a reference cannot be replaced in this dialect.
    """
    if not may_refer(text) or (view := _view(dialect, text)) is None:
        return
    for block, in_result in _walk(view):
        match block:
            case TextBlock(LocatedText() as said, value):
                if in_result and (known := references.text_reference(said)):
                    yield known[0], said.span, _literal_maker(*known)
                elif found := references.media_of_text(said):
                    yield _reference_to_media(dialect, found, value)
            case MediaBlock(url=LocatedText() as url) if place := references.name_of_url(url):
                yield _reference_at(dialect, text, block, url, *place)


def _literal_maker(name: str, kept: str) -> Callable[[bytes], bytes]:
    """Return what makes the JSON string of a text from the blob ``name``.

    That function raises BadData if the text does not begin with ``kept``, the text before the
    reference: then the text was changed, quoted or joined with another.
    """
    is_literal = name.endswith(f".{references.LITERAL}")

    def make(data: bytes) -> bytes:
        text: str = _string(data) if is_literal else data.decode("utf-8", "surrogatepass")
        if not text.startswith(kept):
            raise BadData(
                f"the text before the reference to {name} is not the beginning of the blob",
                "memctl puts back no text that was changed, quoted or joined with another",
            )
        return data if is_literal else _in_json(text)

    return make


def _string(literal: bytes) -> str:
    found: str = json.loads(literal.decode("utf-8", "surrogatepass"))
    return found


def _reference_to_media(
    dialect: Dialect, found: MediaReference, value: Any
) -> tuple[str, Span, Callable[[bytes], bytes]]:
    if not isinstance(value, LocatedObject) or found.dialect != dialect.name:
        raise BadData(
            f"media of a message of {found.dialect} cannot be put into a message of {dialect.name}",
            f"rehydrate the messages in a store of {found.dialect}, then migrate them",
        )
    is_base64 = found.name.endswith(f".{references.BASE64}")

    def make(data: bytes) -> bytes:
        return found.with_data(data if is_base64 else base64.b64encode(data))

    return found.name, value.span, make


def _reference_at(
    dialect: Dialect, text: bytes, media: MediaBlock, url: LocatedText, name: str, media_type: str
) -> tuple[str, Span, Callable[[bytes], bytes]]:
    swap = dialect.inlined(media.value, media_type, name)
    if swap is None or not isinstance(swap.old, LocatedObject):
        start = f"data:{media_type};base64,".encode()
        return name, url.span, lambda data: b"".join((b'"', start, base64.b64encode(data), b'"'))
    span = swap.old.span
    before, _, after = _object(swap.new, text, span).partition(name.encode())
    return name, span, lambda data: b"".join((before, base64.b64encode(data), after))


def _in_json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _object(value: dict[str, Any], text: bytes, span: Span) -> bytes:
    """Return an object as JSON, written as the object at ``span`` in ``text`` is."""
    old = text[span.start : span.stop]
    spaced = b'": ' in old[:_SAMPLE]
    return json.dumps(
        value,
        ensure_ascii=old[:_SAMPLE].isascii(),
        separators=(", ", ": ") if spaced else (",", ":"),
    ).encode("utf-8", "surrogatepass")


_SAMPLE = 1000
"""The number of bytes of an object that show how it is written."""
