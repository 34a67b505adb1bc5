"""Token counts: estimated, or exact by the ``tokenizer.json`` of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from memctl import system
from memctl.errors import UsageError

if TYPE_CHECKING:  # it may not be installed
    from tokenizers import Tokenizer

ASCII_PER_TOKEN = 4
OTHER_BYTES_PER_TOKEN = 3
PIECE = 1 << 16
"""Characters that are tokenized at once: this takes many times their size in memory."""


def estimate(text: str) -> int:
    """Return about how many tokens a model counts in a text, without its tokenizer.

    A token for four ASCII characters and for three bytes of UTF-8 of any other script: close for
    English, a little too many for most others (one a character for Chinese, Japanese and Korean).
    """
    ascii_characters = len(text.encode("ascii", "ignore"))
    others = len(text.encode("utf-8", "surrogatepass")) - ascii_characters
    return -(-ascii_characters // ASCII_PER_TOKEN) + -(-others // OTHER_BYTES_PER_TOKEN)


class TokenCounter:
    """A counter of tokens: with a tokenizer, or an estimate without one.

    Example::

        TokenCounter().count("four")                             # 1, an estimate
        TokenCounter(Path("/srv/qwen/tokenizer.json")).count("four")  # exact
    """

    def __init__(self, path: Path | None = None) -> None:
        """``path`` is a ``tokenizer.json`` of the Hugging Face format; nothing is downloaded.

        Raises:
            UsageError: the file cannot be read or is invalid, or the library is not installed.
        """
        self.name = "estimate" if path is None else str(path)
        self._tokenizer = None if path is None else load_tokenizer(path)

    def count(self, text: str) -> int:
        """Return the tokens of the text, without those that a model puts around it."""
        if self._tokenizer is None:
            return estimate(text)
        # Half surrogate pairs, which JSON may hold, cannot be encoded.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return sum(
            len(self._tokenizer.encode(text[start : start + PIECE], add_special_tokens=False))
            for start in range(0, len(text), PIECE)
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``, which neither truncates nor pads.

    Raises:
        UsageError: the file cannot be read or is invalid, or the library is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(
            "exact token counts need the tokenizers library, which is not installed",
            "pip install 'agentscope-memctl[tokens]', or leave out tokenizer for an estimate",
        ) from error
    hint = "name the tokenizer.json of a model"
    try:
        content = system.read_file(path).decode()
        json.loads(content)
    except (OSError, ValueError) as error:
        raise UsageError(f"the tokenizer {path} cannot be read: {error}", hint) from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library has no narrower class for it
        raise UsageError(f"{path} is not a valid tokenizer: {error}", hint) from error
    # Some files ask to truncate or pad texts, which would falsify the count.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
