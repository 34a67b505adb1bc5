"""Summaries without a model or a network: the telling sentences of the conversation itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable

from memctl.summarizer import Answer, Excerpt, Summarizer, SummaryError, Usage
from memctl.summarizers import ranking, sentences
from memctl.summarizers.cues import AHEAD, FINDING, WISH
from memctl.summarizers.sentences import Sentence, joined
from memctl.summarizers.texts import shorten
from memctl.summary import LIMITS, Summary

WINDOW = 8000
"""Tokens of a part: what a summary costs grows a little faster than what it is of."""
ENOUGH = 2
"""Sentences in which the user's first turns say what is wanted, and the agent's last how far it is.

Where a turn has fewer, the next one counts as well.
"""
LAST_TURNS = 3
"""Turns at the end that may say what is to be done."""
MOST = 4
"""Sentences of a field: many short ones make no text."""

_Key = Callable[[Sentence], tuple[int | bool, ...]]


class Extractive(Summarizer):
    """Picks sentences; says nothing that was not said."""

    kind = "extractive"
    window = WINDOW
    overhead = 0

    def __init__(self, name: str) -> None:
        self.name = name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """One summary; the same for the same excerpt."""
        return Answer(await asyncio.to_thread(extract, excerpt), Usage(exact=True))


def extract(excerpt: Excerpt) -> Summary:
    """The summary of an excerpt.

    Raises:
        SummaryError: ``rejected``: there is no text in it.
    """
    every, language = sentences.of_conversation(excerpt.earlier, excerpt.turns)
    if not every:
        return _without_sentences(excerpt)
    ranking.rank(every, sentences.stop_words(language))
    return Summary(**_Fields(every).filled())


class _Fields:
    """The fields of one summary, each filled from the sentences that no other has taken."""

    def __init__(self, every: list[Sentence]) -> None:
        telling = [sentence for sentence in every if sentence.telling]
        # A conversation of nothing but short sentences is still one.
        self._every = telling or every
        self._taken: set[int] = set()
        # Backwards, so that the first of each turn stays.
        begin = {sentence.turn: sentence.place for sentence in reversed(self._every)}
        self._begin = set(begin.values())
        self._first = self._turns("user")
        self._last = self._turns("assistant", last=True)

    def filled(self) -> dict[str, str]:
        """The fields; those that are easiest to fill from little come last."""
        filled = {
            "task_overview": self._task_overview(),
            "next_steps": self._next_steps(),
            "current_state": self._current_state(),
            "important_discoveries": self._important_discoveries(),
            "context_to_preserve": self._context_to_preserve(),
        }
        return {name: filled[name] for name in LIMITS}

    def _task_overview(self) -> str:
        """What the user asked for first; of a conversation without a user, its beginning."""
        asked = [*self._of("task_overview"), *self._said(self._first)]
        return self._take("task_overview", asked or self._every, self._beginnings)

    def _next_steps(self) -> str:
        """What was said last of what is to be done; else what was asked for last."""
        spoken = [sentence for sentence in self._free() if sentence.role in ("user", "assistant")]
        recent = {sentence.turn for sentence in spoken[-1:]}
        recent |= self._last | {s.turn for s in spoken if s.role == "user" and not s.field}
        turns = sorted(recent)[-LAST_TURNS:]
        ahead = [s for s in spoken if s.turn in turns and AHEAD.search(s.text)]
        asked = [s for s in spoken if s.role == "user"][-1:]
        earlier = self._of("next_steps")
        latest = [s for s in earlier if s.turn == earlier[-1].turn] if earlier else []
        return self._take("next_steps", ahead or latest or asked, lambda s: (-s.turn, s.rank))

    def _current_state(self) -> str:
        """What the agent said last."""
        done = self._said(self._last) or [s for s in self._free() if s.role == "tool"]
        earlier = self._of("current_state")
        return self._take(
            "current_state", [*done, *earlier], lambda s: (bool(s.field), s.asks, -s.turn, s.rank)
        )

    def _important_discoveries(self) -> str:
        """What the agent and its tools found out."""
        found = [s for s in self._free() if s.role in ("assistant", "tool") and not s.asks]
        found += self._of("important_discoveries") + self._unlabelled()
        return self._take(
            "important_discoveries",
            found,
            lambda s: (-_weight(s, FINDING), s.role == "tool", s.rank),
        )

    def _context_to_preserve(self) -> str:
        """What else the user said; of the rest, what tells most."""
        said = [s for s in self._free() if s.role == "user"]
        said += self._of("context_to_preserve") + self._unlabelled()
        # What was asked for last, once, may be a wish that lasts.
        said += [s for s in self._of("next_steps") if WISH.search(s.text)]
        return self._take(
            "context_to_preserve",
            said,
            lambda s: (-_weight(s, WISH), s.asks, s.rank),
        )

    def _beginnings(self, sentence: Sentence) -> tuple[int | bool, ...]:
        """An earlier summary first, then how each turn begins, then what tells most."""
        return not sentence.field, sentence.place not in self._begin, sentence.rank

    def _take(self, field: str, pool: Iterable[Sentence], key: _Key) -> str:
        """The best of some sentences as the text of a field, in the order they were said in."""
        limit = LIMITS[field]
        chosen: list[Sentence] = []
        best = sorted(pool, key=key)
        for sentence in best:
            texts = [one.text for one in sorted([*chosen, sentence], key=_place)]
            if len(chosen) < MOST and sentence not in chosen and len(joined(texts)) <= limit:
                chosen.append(sentence)
        # Half a sentence is better than none.
        chosen = chosen or best[:1]
        self._taken.update(sentence.place for sentence in chosen)
        return shorten(joined([one.text for one in sorted(chosen, key=_place)]), limit)

    def _free(self) -> list[Sentence]:
        return [sentence for sentence in self._every if sentence.place not in self._taken]

    def _of(self, field: str) -> list[Sentence]:
        """What earlier summaries said in a field."""
        return [sentence for sentence in self._free() if sentence.field == field]

    def _unlabelled(self) -> list[Sentence]:
        """What earlier summaries said that had no fields, and messages of the system."""
        return [s for s in self._free() if s.role in ("summary", "system") and not s.field]

    def _said(self, turns: set[int]) -> list[Sentence]:
        return [sentence for sentence in self._free() if sentence.turn in turns]

    def _turns(self, role: str, last: bool = False) -> set[int]:
        """The first or the last turns of a role that have sentences enough."""
        said = [sentence.turn for sentence in self._every if sentence.role == role]
        return set(said[-ENOUGH:] if last else said[:ENOUGH])


def _without_sentences(excerpt: Excerpt) -> Summary:
    """The summary of turns that are all code or placeholders: how the first and last begin."""
    texts = [turn.text for turn in excerpt.turns] + [excerpt.earlier]
    said = [" ".join(text.split()) for text in texts if text.strip()]
    if not said:
        raise SummaryError("rejected", "there is no text in it")
    first, last = said[0], said[-1] if len(said) > 1 else ""
    return Summary(
        shorten(first, LIMITS["task_overview"]), shorten(last, LIMITS["current_state"]), "", "", ""
    )


def _weight(sentence: Sentence, cue: re.Pattern[str]) -> int:
    """What speaks for a sentence beside its words: that it says so, and that it was kept before."""
    return bool(cue.search(sentence.text)) + bool(sentence.field)


def _place(sentence: Sentence) -> int:
    return sentence.place
