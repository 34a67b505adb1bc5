"""An estimate of the tokens of a text."""

from __future__ import annotations

ASCII_PER_TOKEN = 4
OTHER_BYTES_PER_TOKEN = 3


def estimate(text: str) -> int:
    """About how many tokens a model counts in a text, without its tokenizer.

    A token for four ASCII characters and for three bytes of UTF-8 of any other script: close for
    English, a little too many for most others (one a character for Chinese, Japanese and Korean).
    """
    ascii_characters = len(text.encode("ascii", "ignore"))
    others = len(text.encode("utf-8", "surrogatepass")) - ascii_characters
    return -(-ascii_characters // ASCII_PER_TOKEN) + -(-others // OTHER_BYTES_PER_TOKEN)
