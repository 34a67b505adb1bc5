"""One summary of a history of any length: every turn is read once, in requests that fit."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memctl.errors import UsageError
from memctl.inference.errors import ModelError, TooLong
from memctl.inference.settings import Prices, Usage
from memctl.inference.summary import LIMITS, Summary
from memctl.model import Memory, MemoryKey
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.plan import CompressionPlan
from memctl.ops.compress.run import Budget
from memctl.summarizer import Answer, Excerpt, Summarizer, Turn

OVERHEAD = 500
LOOK = settings(deadline=None, max_examples=60, derandomize=os.environ.get("CI") == "true")


class Model(Summarizer):
    """A summarizer whose summaries are as long as they may be; ``limit`` is its true window."""

    kind = "openai"
    name = "model"

    def __init__(self, window: int, limit: int | None = None, letter: str = "a") -> None:
        self.window = window
        self.overhead = OVERHEAD
        self.prices = Prices(1e6, 0.0)
        self.limit = limit or window
        self.read: list[Excerpt] = []
        self.refused = 0
        self._letter = letter

    def size(self, excerpt: Excerpt) -> int:
        return self.count(excerpt.earlier) + sum(
            self.count(f"{turn.speaker}\n{turn.text}") + 4 for turn in excerpt.turns
        )

    async def summarize(self, excerpt: Excerpt) -> Answer:
        if self.size(excerpt) + OVERHEAD > self.limit:
            self.refused += 1
            raise TooLong("no", Usage(1))
        self.read.append(excerpt)
        filler = {name: self._letter * limit for name, limit in LIMITS.items()}
        return Answer(Summary(**filler), Usage(1, 1, exact=True))


def turns(*sizes: int, letter: str = "a") -> list[Turn]:
    """Return turns of so many letters each, between a beginning and an end that identify them."""
    return [
        Turn("user", f"user {n}", f"<{n}>" + letter * size + f"</{n}>")
        for n, size in enumerate(sizes)
    ]


def first_read(model: Model) -> str:
    """All that was read of the conversation itself, in order."""
    return "".join(turn.text for one in model.read for turn in one.turns if turn.role != "summary")


@pytest.mark.slow
@LOOK
@given(
    st.lists(st.integers(0, 6000), min_size=1, max_size=20),
    st.sampled_from("a去"),
    st.integers(1500, 9000),
    st.sampled_from(["", "before", "b" * 4000, "前" * 4000]),
)
def test_compress_parts_every_turn_is_read_once_in_requests_that_fit(
    sizes: list[int], letter: str, window: int, earlier: str
) -> None:
    model = Model(window, letter=letter)
    spent: list[Usage] = []
    said = turns(*sizes, letter=letter)
    asyncio.run(
        ChunkedSummarizer(model, lambda usage, _: spent.append(usage)).summarise(said, earlier)
    )
    assert first_read(model) == "".join(turn.text for turn in said), "once, in order, all of it"
    assert model.refused == 0
    assert len(spent) == len(model.read)
    told = [one for one in model.read if one.earlier]
    before = "".join(t.text for one in model.read for t in one.turns if "before" in t.speaker)
    if told:
        assert (told, told[0].earlier, before) == ([model.read[-1]], earlier, "")
    else:
        assert before == earlier, "one that is long is read like the rest"


@pytest.mark.slow
@LOOK
@given(
    st.lists(st.integers(0, 6000), min_size=1, max_size=10),
    st.integers(1600, 8000),
    st.sampled_from("a去"),
)
def test_compress_parts_window_that_is_less_than_was_said(
    sizes: list[int], limit: int, letter: str
) -> None:
    model = Model(32_000, limit, letter)
    asyncio.run(
        ChunkedSummarizer(model, lambda *_: None).summarise(turns(*sizes, letter=letter), "")
    )
    assert first_read(model) == "".join(turn.text for turn in turns(*sizes, letter=letter))


async def test_compress_parts_what_is_learnt_of_the_window_serves_the_next_memory() -> None:
    model = Model(32_000, 8_000)
    parts = ChunkedSummarizer(model, lambda *_: None)
    await parts.summarise(turns(*[2000] * 40), "")
    refused = model.refused
    assert refused
    await parts.summarise(turns(*[2000] * 40), "")
    assert model.refused <= refused + 1


async def test_compress_parts_scripts_that_are_mixed_fit_as_well() -> None:
    """A turn most of whose tokens are at its end."""
    model = Model(2500)
    turn = Turn("user", "user", "a" * 30_000 + "去" * 5_000)
    await ChunkedSummarizer(model, lambda *_: None).summarise([turn], "")
    assert first_read(model) == turn.text
    assert model.refused == 0


async def test_compress_parts_model_that_takes_nothing_is_given_up() -> None:
    model = Model(32_000, 1)
    spent: list[Usage] = []
    with pytest.raises(TooLong):
        await ChunkedSummarizer(model, lambda usage, _: spent.append(usage)).summarise(
            turns(*[500] * 30), "before"
        )
    assert len(spent) == model.refused < 20


async def test_compress_parts_what_fails_is_paid_for_as_well() -> None:
    class Bad(Model):
        async def summarize(self, _: Excerpt) -> Answer:
            raise ModelError("bad-reply", "no", usage=Usage(7))

    spent: list[Usage] = []
    with pytest.raises(ModelError):
        await ChunkedSummarizer(Bad(9000), lambda usage, _: spent.append(usage)).summarise(
            turns(5), ""
        )
    assert spent == [Usage(7)]


def test_compress_parts_window_without_room() -> None:
    with pytest.raises(UsageError, match="too small for a conversation"):
        ChunkedSummarizer(Model(OVERHEAD + 999), lambda *_: None)


# What it may cost


def case(tokens: int, start: int = 0, earlier: str = "") -> CompressionPlan:
    return CompressionPlan(Memory(MemoryKey("u", "s")), earlier, 3, 3, tokens, tokens, start=start)


def test_compress_parts_what_goes_on_counts_as_spent() -> None:
    model = Model(10_000)
    budget = Budget(5_000.0, model, ChunkedSummarizer(model, lambda *_: None))
    first, second, third = (case(1000, start) for start in range(3))
    assert budget.estimate(first).tokens_in == 1500
    assert [budget.allows(one, 0.0) for one in (first, second, third)] == [True] * 3
    assert not budget.allows(case(1000, 3), 0.0), "three go on, for 1,500 each"
    budget.settle(first)
    assert not budget.allows(case(1000, 3), 1_000.0)
    assert budget.allows(case(1000, 3), 400.0)
    budget.settle(second)
    budget.settle(second)
    assert not budget.allows(case(1000, 5), 2_000.1)


def test_compress_parts_estimates_count_parts_and_what_stood_before() -> None:
    model = Model(10_000)
    budget = Budget(None, model, ChunkedSummarizer(model, lambda *_: None))
    assert budget.estimate(case(1000, earlier="x")).tokens_in == 2000
    whole = budget.estimate(case(19_000))
    assert whole.tokens_in == 19_000 + 2 * 500 + 3 * 500
    assert whole.tokens_out == 3 * 500
    assert budget.allows(case(10**9), 10.0**9), "no limit"
    model.prices = None
    assert Budget(0.0, model, ChunkedSummarizer(model, lambda *_: None)).allows(case(1), 5.0), (
        "no prices"
    )
