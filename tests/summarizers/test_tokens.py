"""Exact counts by a tokenizer.json, and the estimate without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from memctl.errors import UsageError
from memctl.inference.errors import TooLong
from memctl.inference.settings import Settings
from memctl.inference.tokens import PIECE, TokenCounter
from memctl.summarizer import Excerpt, Turn
from memctl.summarizers.registry import make_summarizer
from tests.summarizers.flavours import cut_to
from tests.summarizers.server import SUMMARY, ModelServer, says


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tokenizer that counts words; and that would cut a text, as some files say."""
    tokenizer = Tokenizer(WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_tokenizer_counts_exactly(path: Path) -> None:
    counter = TokenCounter(path)
    assert counter.count("") == 0
    assert counter.count("word word") == 2
    assert counter.count("word " * 1000) == 1000
    assert counter.count("half \ud83d") == 2
    assert counter.name == str(path)


def test_long_text_is_counted_in_pieces(path: Path) -> None:
    text = "word " * PIECE
    assert PIECE <= TokenCounter(path).count(text) <= PIECE + 5


def test_counter_without_tokenizer_estimates() -> None:
    assert (TokenCounter().count("four"), TokenCounter().name) == (1, "estimate")


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"model": 1}', "\ud800"])
def test_invalid_tokenizer_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError) as caught:
        TokenCounter(path)
    assert str(path) in caught.value.message
    with pytest.raises(UsageError):
        TokenCounter(tmp_path)


async def test_summarizer_counts_with_its_tokenizer(path: Path) -> None:
    command = {"command": "cat", "tokenizer": str(path)}
    made = make_summarizer(Settings("c", "command", command))
    assert (made.count("word word word"), made.counted_by) == (3, str(path))


async def test_cut_is_noticed_sooner_with_tokenizer(path: Path) -> None:
    words = Excerpt([Turn("user", "user", "four " * 3000)])
    with ModelServer(cut_to(3000, says(SUMMARY)), cut_to(3000, says(SUMMARY))) as server:
        options = {"model": "m", "base_url": server.url}
        async with make_summarizer(Settings("m", "openai", options)) as estimating:
            await estimating.summarize(words)
        options["tokenizer"] = str(path)
        async with make_summarizer(Settings("m", "openai", options)) as exact:
            with pytest.raises(TooLong):
                await exact.summarize(words)
