"""Large contents taken out of one message, and put back.

Only the bytes of the large contents change.  ``slim`` proves that ``restored`` gives back the same
bytes, and leaves in the message what it cannot prove.  Contents go in pieces from the message to
their blobs and back: a message of hundreds of megabytes takes little RAM besides itself.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from msgspec import Struct, field

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
from memctl.inference.tokens import ASCII_PER_TOKEN, estimate
from memctl.json.located import (
    LocatedObject,
    LocatedText,
    Span,
    cut_from,
    located,
    spliced,
    strings,
)
from memctl.ops.offload import references
from memctl.ops.offload.pieces import (
    PIECE,
    end_of,
    from_base64,
    in_base64,
    in_json,
    in_utf8,
    joined,
    parts,
    texts,
)
from memctl.ops.offload.references import MediaReference


class Rule(NamedTuple):
    """The limit of large contents, and the part of them that stays in the message.

    ``larger`` is the size in bytes of the stored JSON above which a content is taken out.  ``keep``
    is the size in bytes of the beginning of a text that stays.  ``url_prefix`` begins the URLs of
    media, if agents can read the blobs; else a text takes the place of media.
    """

    larger: int = 64_000
    keep: int = 1_000
    url_prefix: str = ""


class Blob(NamedTuple):
    """A content that was taken out: its file name without a compression, and its size in bytes.

    Each call of ``pieces`` yields the bytes anew.  Agents read a ``linked`` blob at a URL, so the
    blob must not be compressed.
    """

    name: str
    size: int
    pieces: Callable[[], Iterator[bytes]]
    linked: bool = False


class Slim(Struct, frozen=True):
    """A message without its large contents, and these contents."""

    text: bytes
    blobs: list[Blob] = field(default_factory=list)
    left: int = 0
    """The number of large contents that stay, since they could not be restored exactly."""


Fetch = Callable[[str], Iterable[bytes]]
"""Returns the content of the blob with a name in pieces; raises MemctlError without such a blob."""

_Make = Callable[[Iterable[bytes]], Iterator[bytes]]
"""Makes a part of a message, in pieces, from the pieces of a blob."""


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


def shortened(dialect: Dialect, text: bytes, rule: Rule) -> bytes:
    """Return the message with shortened large contents; the contents are still above the limit."""
    cuts: list[tuple[Span, bytes]] = []
    view = _view(dialect, text)
    for block, in_result in _walk(view) if view else ():
        if not _is_large(block, in_result, rule.larger):
            continue
        match block:
            case TextBlock(LocatedText() as said):
                span, size = said.span, _LONGEST_ESCAPE * (rule.larger + 1)
                if size + 2 < span.stop - span.start:
                    begin = _beginning(text[span.start : span.start + size + 1], size)
                    cuts.append((span, begin + b'"'))
            case MediaBlock(data=str(data), value=LocatedObject() as value):
                found = _literal(value, data)
                place = found and _data_at(*found)
                if found and place:
                    stop = min(place.stop, place.start + (rule.larger // 4 + 1) * 4)
                    cuts.append((found[0].span, text[found[0].span.start : stop] + b'"'))
    return spliced(text, cuts)


_LONGEST_ESCAPE = 6
"""The bytes of the longest JSON escape of a character of one byte, such as ``\\u0000``."""


def restored(dialect: Dialect, text: bytes, fetch: Fetch) -> bytes:
    """Put the contents of blobs back into the message ``text``.

    Raises:
        BadData: a reference cannot be replaced in this dialect, or is quoted.
        MemctlError: as ``fetch``.
    """
    return joined(_restored(dialect, text, fetch))


def _restored(dialect: Dialect, text: bytes, fetch: Fetch) -> Iterator[bytes]:
    """Yield the message that ``restored`` returns, in pieces.

    Raises:
        BadData, MemctlError: as ``restored``.
    """
    at = 0
    for name, span, make in sorted(_references(dialect, text), key=lambda one: one[1]):
        yield text[at : span.start]
        yield from make(fetch(name))
        at = span.stop
    yield text[at:]


def tokens(dialect: Dialect, text: bytes) -> int:
    """Return the estimated tokens of the texts and tool results of a message, without media."""
    # To parse a text is faster than to locate its strings, but takes more RAM.
    view = dialect.parse(text) if len(text) <= PIECE else dialect.view_of(object_of(located(text)))
    said = [block for block, _ in _walk(view) if isinstance(block, TextBlock)]
    return sum(estimate(one.text) + -(-cut_from(one.value) // ASCII_PER_TOKEN) for one in said)


def refused(origin: str, dialect: Dialect) -> BadData:
    """Return the error of a content of a message of the dialect ``origin`` in another dialect."""
    return BadData(
        f"contents of a message of {origin} cannot be put into this message of {dialect.name}",
        f"rehydrate whole memories, or in a store of {origin}, then migrate the messages",
    )


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
        case TextBlock(text, value) if in_result:
            size = len(text) + cut_from(value)
            return size > larger or len(text.encode("utf-8", "surrogatepass")) > larger
        case MediaBlock(data=str(data), value=value):
            return len(data) > larger or len(data) + cut_from(value) > larger
    return False


def _piece(dialect: Dialect, text: bytes, block: Block, rule: Rule) -> _Piece | None:
    match block:
        case TextBlock(LocatedText() as said):
            return _of_text(dialect, text, said, rule.keep)
        case MediaBlock(data=str(data), value=LocatedObject() as value):
            if found := _literal(value, data):
                return _of_media(dialect, text, block, *found, rule.url_prefix)
    return None


def _of_text(dialect: Dialect, text: bytes, said: LocatedText, keep: int) -> _Piece:
    start, stop = said.span
    literal = memoryview(text)[start:stop]
    data = partial(parts, literal[1:-1]) if said.cut else partial(in_utf8, said)
    blob = _blob(data, references.TEXT)
    size = blob.size
    if not said.cut and end_of(in_json(texts(said)), text, start) != stop:
        blob = _blob(partial(parts, literal), references.LITERAL)
    end = _in_json(references.end_of_text(blob.name, size, dialect.name))
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


def _data_at(literal: LocatedText, said: str) -> Span | None:
    """Return the place of base64 data ``said`` at the end of a string.

    None if the string is escaped, or not ASCII.
    """
    start, stop = literal.span.start + 1 + len(literal) - len(said), literal.span.stop - 1
    return (
        Span(start, stop) if stop - literal.span.start - 1 == len(literal) + literal.cut else None
    )


def _of_media(
    dialect: Dialect, text: bytes, media: MediaBlock, literal: LocatedText, said: str, prefix: str
) -> _Piece | None:
    place = _data_at(literal, said)
    if place is None:
        return None
    start, stop = place
    data = memoryview(text)[start:stop]
    extension = references.EXTENSIONS.get(media.media_type or "", references.OTHER)
    blob = _decoded(data, extension) or _blob(partial(parts, data), references.BASE64)
    is_decoded = not blob.name.endswith(f".{references.BASE64}")
    if prefix and is_decoded and extension != references.OTHER:
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
    line = dialect.text_block(reference.text(blob.size), media.value)
    if cut_from(line):
        return None  # it has another huge string, of which only the beginning is known
    return _Piece(span, _object(line, text, span), blob)


def _decoded(data: memoryview, extension: str) -> Blob | None:
    """Return a blob of decoded base64; None if ``data`` is not the standard form of its content."""
    try:
        blob = _blob(partial(from_base64, data), extension)
    except ValueError:
        return None
    return blob if len(data) == -(-blob.size // 3) * 4 else None


def _blob(pieces: Callable[[], Iterator[bytes]], extension: str) -> Blob:
    digest, size = sha256(), 0
    for piece in pieces():
        digest.update(piece)
        size += len(piece)
    return Blob(f"{digest.hexdigest()}.{extension}", size, pieces)


def _is_proven(dialect: Dialect, text: bytes, pieces: list[_Piece]) -> bool:
    new = spliced(text, [(piece.span, piece.new) for piece in pieces])
    blobs = {piece.blob.name: piece.blob for piece in pieces}
    whole = _restored(dialect, new, lambda name: blobs[name].pieces())
    try:
        return end_of(whole, text, 0) == len(text)
    except (BadData, KeyError):
        return False


def _references(dialect: Dialect, text: bytes) -> Iterator[tuple[str, Span, _Make]]:
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


def _literal_maker(name: str, kept: str) -> _Make:
    """Return what makes the JSON string of a text from the blob ``name``.

    That function raises BadData if the text does not begin with ``kept``, the text before the
    reference: then the text was changed, quoted or joined with another.
    """

    def checked(texts: Iterable[str]) -> Iterator[str]:
        at = 0
        for text in texts:
            part = kept[at : at + len(text)]
            if not text.startswith(part):
                break
            yield text
            at += len(text)
        if at < len(kept):
            raise BadData(
                f"the text before the reference to {name} is not the beginning of the blob",
                "memctl puts back no text that was changed, quoted or joined with another",
            )

    def make(pieces: Iterable[bytes]) -> Iterator[bytes]:
        if not name.endswith(f".{references.LITERAL}"):
            decoder = getincrementaldecoder("utf-8")("surrogatepass")
            yield from in_json(checked(map(decoder.decode, pieces)))
            return
        literal = joined(pieces)
        for _ in checked([json.loads(literal.decode("utf-8", "surrogatepass"))]):
            yield literal

    return make


def _reference_to_media(
    dialect: Dialect, found: MediaReference, value: Any
) -> tuple[str, Span, _Make]:
    if not isinstance(value, LocatedObject | LocatedText) or found.dialect != dialect.name:
        raise refused(found.dialect, dialect)
    if not found.is_whole:
        raise BadData(
            f"the reference to {found.name} is joined with another text",
            "memctl puts back no text that was changed, quoted or joined with another",
        )
    before, after = found.around_data()
    is_base64 = found.name.endswith(f".{references.BASE64}")
    if isinstance(value, LocatedText):  # a conversion made a text of a list with it alone
        before, after = b"[" + before, after + b"]"
    return found.name, value.span, partial(_between, before, after, is_base64=is_base64)


def _reference_at(
    dialect: Dialect, text: bytes, media: MediaBlock, url: LocatedText, name: str, media_type: str
) -> tuple[str, Span, _Make]:
    swap = dialect.inlined(media.value, media_type, name)
    if swap is None or not isinstance(swap.old, LocatedObject):
        return name, url.span, partial(_between, f'"data:{media_type};base64,'.encode(), b'"')
    span = swap.old.span
    before, _, after = _object(swap.new, text, span).partition(name.encode())
    return name, span, partial(_between, before, after)


def _between(
    before: bytes, after: bytes, pieces: Iterable[bytes], *, is_base64: bool = False
) -> Iterator[bytes]:
    """Yield the pieces of a blob as base64, which they may be already, between other bytes."""
    yield before
    yield from pieces if is_base64 else in_base64(pieces)
    yield after


def _in_json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _object(value: dict[str, Any], text: bytes, span: Span) -> bytes:
    """Return an object as JSON, written as the object at ``span`` in ``text`` is."""
    old = text[span.start : min(span.stop, span.start + _SAMPLE)]
    return json.dumps(
        value,
        ensure_ascii=old.isascii(),
        separators=(", ", ": ") if b'": ' in old else (",", ":"),
    ).encode("utf-8", "surrogatepass")


_SAMPLE = 1000
"""The number of bytes of an object that show how it is written."""
