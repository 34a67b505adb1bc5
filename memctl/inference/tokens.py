"""Token counts: estimated, or exact by the ``tokenizer.json`` of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from memctl.errors import UsageError
from memctl.machine import system

if TYPE_CHECKING:  # optional dependency
    from tokenizers import Tokenizer

ASCII_PER_TOKEN = 4
OTHER_BYTES_PER_TOKEN = 3
_OTHER_BYTES = bytes(range(0x80, 0x100))
PIECE = 1 << 16
"""The number of characters to count at once, because counting takes much memory."""


def estimate(text: str) -> int:
    """Return an estimate of the number of tokens in a text, without a tokenizer.

    Four ASCII characters count as a token, and so do three bytes of UTF-8 of any other script.  The
    result is close for English, and a little too high for most other languages (one token per
    character for Chinese, Japanese and Korean).
    """
    if text.isascii():
        return -(-len(text) // ASCII_PER_TOKEN)
    ascii_characters = others = 0
    for start in range(0, len(text), PIECE):
        encoded = text[start : start + PIECE].encode("utf-8", "surrogatepass")
        plain = len(encoded.translate(None, _OTHER_BYTES))
        ascii_characters += plain
        others += len(encoded) - plain
    return -(-ascii_characters // ASCII_PER_TOKEN) + -(-others // OTHER_BYTES_PER_TOKEN)


class TokenCounter:
    """A counter of tokens: exact with a tokenizer, an estimate without.

    Example::

        TokenCounter().count("four")                             # 1, an estimate
        TokenCounter(Path("/srv/qwen/tokenizer.json")).count("four")  # exact
    """

    def __init__(self, path: Path | None = None) -> None:
        """Load the ``tokenizer.json`` at ``path``, in the format of Hugging Face.

        Without ``path``, counts are estimates.  Nothing is downloaded.

        Raises:
            UsageError: the file cannot be read or is invalid, or the library is not installed.
        """
        self.name = "estimate" if path is None else str(path)
        self._tokenizer = None if path is None else load_tokenizer(path)

    def count(self, text: str) -> int:
        """Return the number of tokens of the text, without the special tokens of a model."""
        if self._tokenizer is None:
            return estimate(text)
        # JSON may hold lone surrogates, and the tokenizer cannot encode them.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return sum(
            len(self._tokenizer.encode(text[start : start + PIECE], add_special_tokens=False))
            for start in range(0, len(text), PIECE)
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer from a ``tokenizer.json``, without truncation and padding.

    Raises:
        UsageError: the file cannot be read or is invalid, or the library is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            "exact token counts need the tokenizers library, which is not installed",
            f"{install_command('tokens')}, or leave out tokenizer for an estimate",
        ) from error
    hint = "name the tokenizer.json of a model"
    try:
        content = system.read_file(path).decode()
        json.loads(content)
    except (OSError, ValueError) as error:
        raise UsageError(f"the tokenizer {path} cannot be read: {error}", hint) from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        raise UsageError(f"{path} is not a valid tokenizer: {error}", hint) from error
    # Some files request truncation or padding, which would falsify the count.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
