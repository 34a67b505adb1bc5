"""Exact token counts, by the ``tokenizer.json`` of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from memctl.errors import UsageError
from memctl.summarizers.texts import encodable
from memctl.tokens import estimate

if TYPE_CHECKING:  # it may not be installed
    from tokenizers import Tokenizer

PIECE = 1 << 16
"""Characters that are counted at once: what a count takes in memory is many times its text."""


class Counter:
    """Counts tokens: by a tokenizer, or as an estimate where there is none."""

    def __init__(self, path: Path | None = None) -> None:
        """``path`` is a ``tokenizer.json`` as Hugging Face has them; nothing is downloaded.

        Raises:
            UsageError: the file cannot be read or is none; or the library is not installed.
        """
        self.name = "estimate" if path is None else str(path)
        self._tokenizer = None if path is None else _load(path)

    def count(self, text: str) -> int:
        """Tokens of the text, without those that a model puts around it."""
        if self._tokenizer is None:
            return estimate(text)
        text = encodable(text)
        return sum(
            len(self._tokenizer.encode(text[start : start + PIECE], add_special_tokens=False))
            for start in range(0, len(text), PIECE)
        )


def _load(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(
            "exact token counts need the tokenizers library, which is not installed",
            "pip install 'agentscope-memctl[tokens]', or leave out tokenizer for an estimate",
        ) from error
    hint = "it must be the tokenizer.json of a model"
    try:
        content = path.read_text(encoding="utf-8")
        json.loads(content)
    except (OSError, ValueError) as error:
        raise UsageError(f"the tokenizer {path} cannot be read: {error}", hint) from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library has no narrower class for it
        raise UsageError(f"the tokenizer {path} is none: {error}", hint) from error
    # Some files say that texts are to be cut or filled up, which is no way to count.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
