"""Summaries without a model or a network: the most informative sentences of the conversation.

The summarizer splits the text into sentences and ranks the sentences by recurring words (Luhn's
method).  Each field of the summary gets the best matching sentences.  Speaker, position and cue
words of a sentence decide about the match.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import cache

import sentencex
import stopwordsiso
from msgspec import Struct

from memctl.inference.errors import ModelError
from memctl.inference.settings import Usage
from memctl.inference.summary import LIMITS, Summary, read_headings
from memctl.inference.text import clean, shorten
from memctl.summarizer import Answer, Excerpt, Summarizer, Turn

WINDOW = 8000
"""The maximum tokens of a conversation to summarize at once; more take more time per token."""
_MIN_SENTENCES = 2
"""The task is looked for in the turns of the user's first sentences, the current state in the
turns of the agent's last sentences: in both cases this number of sentences."""
_LAST_TURNS = 3
"""The number of turns at the end that may name next steps."""
_MAX_SENTENCES = 4
"""The maximum number of sentences in a field: many short sentences do not make a text."""

_MAX_LINE = 2000
"""The number of characters to read of a line; the further characters are assumed to be data."""
_MIN_WORDS = 4
"""A sentence with fewer words is mostly a greeting.  See ``words``."""
_MIN_LETTERS = 0.6
"""The minimum share of letters in prose; code and tables have less."""
_LANGUAGE_SAMPLE = 2000
"""The number of words to read to recognize the language of a conversation."""
_LARGEST_GAP = 3
"""The maximum number of insignificant words between two significant words of a cluster.

Luhn allowed four or five, but conversations have shorter sentences than Luhn's articles.
"""

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAGS = re.compile(r"</?\s*system-[\w-]*\s*>", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\s*\[(?:calls|image|audio|video)\b[^\]]*\]")
_RESULT_OF = re.compile(r"\s*\[result of [^\]]*\]\s*")
_LIST_MARKS = re.compile(r"\s*(?:#{1,6}\s+|>\s+|[-*+•]\s+|\d{1,3}[.)]\s+)*")
_EMPHASIS = re.compile(r"\*\*|__|~~")

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN = re.compile(f"[{_CJK}]")
# The scripts without spaces between words: CJK, Thai, Lao, Burmese and Khmer.
_UNSPACED = re.compile(f"[{_CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+")
# Not \w, because \w does not match the vowel signs of Indic and further scripts.
_WORD = re.compile(r"[^\s\d!-/:-@\[-`{-~¡-¿–-⁞،؛؟।、-〿！-／：-＠［-｠…]+")


class Sentence(Struct):
    """A sentence of a conversation: its position, and the number and role of its turn.

    ``words`` are its words in lower case.  If the sentence is from an earlier summary, ``field`` is
    the name of its field there; otherwise, ``field`` is empty.  ``rank`` is 0 for the most
    informative sentence.
    """

    position: int
    turn: int
    role: str
    text: str
    words: list[str]
    field: str = ""
    rank: int = 0

    @property
    def informative(self) -> bool:
        """True if the sentence is prose and not very short."""
        letters = sum(map(len, _WORD.findall(self.text)))
        dense = letters >= _MIN_LETTERS * len(self.text.replace(" ", ""))
        return dense and len(self.words) >= _MIN_WORDS

    @property
    def asks(self) -> bool:
        """True if the sentence is a question."""
        return self.text.rstrip("\"'”’»)」』").endswith(("?", "？", "؟"))


_SortKey = Callable[[Sentence], tuple[int | bool, ...]]


class Extractive(Summarizer):
    """A summarizer that builds the summary from sentences of the conversation."""

    kind = "extractive"
    window = WINDOW
    overhead = 0

    def __init__(self, name: str) -> None:
        self.name = name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary of an excerpt; equal excerpts have equal summaries."""
        return Answer(await asyncio.to_thread(extract, excerpt), Usage(exact=True))


def extract(excerpt: Excerpt) -> Summary:
    """Return a summary of the excerpt, made from its sentences.

    Raises:
        ModelError: the excerpt has no text (code ``rejected``).
    """
    sentences, language = split_conversation(excerpt.earlier, excerpt.turns)
    if not sentences:
        return _without_sentences(excerpt)
    rank(sentences, stop_words(language))
    return Summary(**_FieldFiller(sentences).fill())


class _FieldFiller:
    """Chooses sentences for the fields of one summary; each sentence is used once."""

    def __init__(self, sentences: list[Sentence]) -> None:
        informative = [sentence for sentence in sentences if sentence.informative]
        # A conversation with only short sentences also gets a summary.
        self._sentences = informative or sentences
        self._taken: set[int] = set()
        # In reverse, so that the dict keeps the first sentence of each turn.
        begins = {sentence.turn: sentence.position for sentence in reversed(self._sentences)}
        self._begins = set(begins.values())
        self._first = self._turns("user")
        self._last = self._turns("assistant", last=True)

    def fill(self) -> dict[str, str]:
        """Return the text of each field of the summary, by field name.

        The fields that accept almost any sentence are filled last.
        """
        filled = {
            "task_overview": self._task_overview(),
            "next_steps": self._next_steps(),
            "current_state": self._current_state(),
            "important_discoveries": self._important_discoveries(),
            "context_to_preserve": self._context_to_preserve(),
        }
        return {name: filled[name] for name in LIMITS}

    def _task_overview(self) -> str:
        """Return the first sentences of the user; without a user, sentences from the beginning."""
        asked = [*self._from_field("task_overview"), *self._in_turns(self._first)]
        return self._take("task_overview", asked or self._sentences, self._beginnings_first)

    def _next_steps(self) -> str:
        """Return recent next steps, else earlier next steps, else the last request."""
        spoken = [sentence for sentence in self._free() if sentence.role in ("user", "assistant")]
        recent = {sentence.turn for sentence in spoken[-1:]}
        recent |= self._last | {s.turn for s in spoken if s.role == "user" and not s.field}
        turns = sorted(recent)[-_LAST_TURNS:]
        ahead = [s for s in spoken if s.turn in turns and _NEXT_STEP.search(s.text)]
        asked = [s for s in spoken if s.role == "user"][-1:]
        earlier = self._from_field("next_steps")
        latest = [s for s in earlier if s.turn == earlier[-1].turn] if earlier else []
        return self._take("next_steps", ahead or latest or asked, lambda s: (-s.turn, s.rank))

    def _current_state(self) -> str:
        """Return the agent's last statements, or else tool results."""
        done = self._in_turns(self._last) or [s for s in self._free() if s.role == "tool"]
        earlier = self._from_field("current_state")
        return self._take(
            "current_state", [*done, *earlier], lambda s: (bool(s.field), s.asks, -s.turn, s.rank)
        )

    def _important_discoveries(self) -> str:
        """Return statements of the agent and of tools, findings first."""
        found = [s for s in self._free() if s.role in ("assistant", "tool") and not s.asks]
        found += self._from_field("important_discoveries") + self._without_field()
        return self._take(
            "important_discoveries",
            found,
            lambda s: (-_weight(s, _FINDING), s.role == "tool", s.rank),
        )

    def _context_to_preserve(self) -> str:
        """Return unused statements of the user, wishes first."""
        said = [s for s in self._free() if s.role == "user"]
        said += self._from_field("context_to_preserve") + self._without_field()
        # An old next step may also express a lasting wish.
        said += [s for s in self._from_field("next_steps") if _WISH.search(s.text)]
        return self._take(
            "context_to_preserve",
            said,
            lambda s: (-_weight(s, _WISH), s.asks, s.rank),
        )

    def _beginnings_first(self, sentence: Sentence) -> tuple[int | bool, ...]:
        """Return a sort key: summaries, then beginnings of turns, then by rank."""
        return not sentence.field, sentence.position not in self._begins, sentence.rank

    def _take(self, field: str, pool: Iterable[Sentence], key: _SortKey) -> str:
        """Use the first sentences of ``pool``, sorted by ``key``, for a field; return its text."""
        limit = LIMITS[field]
        chosen: list[Sentence] = []
        best = sorted(pool, key=key)
        for sentence in best:
            texts = [one.text for one in sorted([*chosen, sentence], key=_position)]
            fits = len(chosen) < _MAX_SENTENCES and len(join(texts)) <= limit
            if fits and sentence not in chosen:
                chosen.append(sentence)
        # If the best sentence is too long, a shortened sentence is better than an empty field.
        chosen = chosen or best[:1]
        self._taken.update(sentence.position for sentence in chosen)
        return shorten(join([one.text for one in sorted(chosen, key=_position)]), limit)

    def _free(self) -> list[Sentence]:
        return [sentence for sentence in self._sentences if sentence.position not in self._taken]

    def _from_field(self, field: str) -> list[Sentence]:
        """Return the unused sentences from this field of earlier summaries."""
        return [sentence for sentence in self._free() if sentence.field == field]

    def _without_field(self) -> list[Sentence]:
        """Return the unused sentences of system messages and of summaries without fields."""
        return [s for s in self._free() if s.role in ("summary", "system") and not s.field]

    def _in_turns(self, turns: set[int]) -> list[Sentence]:
        return [sentence for sentence in self._free() if sentence.turn in turns]

    def _turns(self, role: str, last: bool = False) -> set[int]:
        """Return the turns of the first ``_MIN_SENTENCES`` sentences of a role.

        With ``last``, return the turns of the last sentences.
        """
        said = [sentence.turn for sentence in self._sentences if sentence.role == role]
        return set(said[-_MIN_SENTENCES:] if last else said[:_MIN_SENTENCES])


def _without_sentences(excerpt: Excerpt) -> Summary:
    """Return a summary of an excerpt without sentences: the beginnings of two of its texts."""
    texts = [turn.text for turn in excerpt.turns] + [excerpt.earlier]
    said = [" ".join(text.split()) for text in texts if text.strip()]
    if not said:
        raise ModelError("rejected", "the conversation has no text")
    first, last = said[0], said[-1] if len(said) > 1 else ""
    return Summary(
        shorten(first, LIMITS["task_overview"]), shorten(last, LIMITS["current_state"]), "", "", ""
    )


def _weight(sentence: Sentence, cue: re.Pattern[str]) -> int:
    """Return one point for a cue word, and one for an earlier summary."""
    return bool(cue.search(sentence.text)) + bool(sentence.field)


def _position(sentence: Sentence) -> int:
    return sentence.position


# Sentences and words


def split_conversation(earlier: str, turns: list[Turn]) -> tuple[list[Sentence], str | None]:
    """Return the distinct sentences of a conversation, and their language.

    ``earlier`` is the text of an earlier summary, or empty; its sentences come first.  The language
    is an ISO 639-1 code, or None if no language is recognized.
    """
    everything = [Turn("summary", "", earlier), *turns] if earlier else turns
    lines = [
        (number, turn.role, field, line)
        for number, turn in enumerate(everything)
        for field, text in _fields(turn)
        for line in prose(text)
    ]
    language = recognize_language(line for *_, line in lines)
    seen: set[str] = set()
    sentences: list[Sentence] = []
    for number, role, field, line in lines:
        for text in split(line, language):
            found = words(text)
            known = " ".join(found) or text
            if known not in seen:
                seen.add(known)
                sentences.append(Sentence(len(sentences), number, role, text, found, field))
    return sentences, language


def _fields(turn: Turn) -> Iterator[tuple[str, str]]:
    """Yield pairs of field name and text for a turn.

    A summary with headings yields its fields.  Other turns yield their text with an empty name.
    """
    fields = read_headings(turn.text) if turn.role == "summary" else None
    if fields is None:
        yield "", turn.text
    else:
        for name in LIMITS:
            yield name, getattr(fields, name)


def prose(text: str) -> Iterator[str]:
    """Yield the lines of prose in a text, without the Markdown of lists, headings and emphasis."""
    for line in _CODE.sub("\n", _TAGS.sub("", clean(text))).split("\n"):
        line = _PLACEHOLDER.sub("", line, count=1) if _PLACEHOLDER.match(line) else line
        line = _LIST_MARKS.sub("", _RESULT_OF.sub("", line, count=1), count=1)
        line = _EMPHASIS.sub("", line)[:_MAX_LINE].strip()
        if line and not line.startswith(("{", "|", "<")):  # arguments of tools, tables, markup
            yield line


def split(line: str, language: str | None = None) -> list[str]:
    """Split a line into sentences, by the rules of the language for abbreviations.

    ``language`` is an ISO 639-1 code.  For None, or a language unknown to the library sentencex,
    English is used.
    """
    found = (sentence.strip() for sentence in sentencex.segment(language or "en", line))
    return [sentence for sentence in found if sentence]


def join(sentences: list[str]) -> str:
    """Join sentences into one text, with spaces between if the script uses spaces."""
    text = ""
    for sentence in sentences:
        close = not text or (_HAN.match(sentence) and not text[-1].isascii())
        text += sentence if close else f" {sentence}"
    return text


def words(text: str) -> list[str]:
    """Return the words of a text in lower case.

    A text in a script without spaces gives pairs of adjacent characters instead of words.
    """
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        start = 0
        for run in _UNSPACED.finditer(word):
            found += [word[start : run.start()]] if run.start() > start else []
            pairs = run.group()
            found += [pairs[i : i + 2] for i in range(max(1, len(pairs) - 1))]
            start = run.end()
        found += [word[start:]] if start < len(word) else []
    return found


def recognize_language(texts: Iterable[str]) -> str | None:
    """Return the language with the most stop words in the texts, as an ISO 639-1 code.

    The result is None if the texts have no stop words of any language.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
        if counts.total() > _LANGUAGE_SAMPLE:
            break
    found = {
        language: sum(counts[word] for word in stopwordsiso.stopwords(language) & counts.keys())
        for language in sorted(stopwordsiso.langs())
    }
    best = max(found, key=lambda language: found[language])
    return best if found[best] else None


@cache
def stop_words(language: str | None) -> frozenset[str]:
    """Return the uninformative words of a language, split as by ``words``; none for None."""
    if language is None:
        return frozenset()
    found: set[str] = set()
    for word in stopwordsiso.stopwords(language):
        parts = words(word)
        # A long stop word in a script without spaces is skipped: its pairs of characters would also
        # match informative words.
        if len(parts) == 1 or not _UNSPACED.search(word):
            found.update(parts)
    return frozenset(found)


# Ranking
#
# Source: H. P. Luhn, "The Automatic Creation of Literature Abstracts", IBM Journal of Research and
# Development 2 (1958), 159-165.  As in the library sumy, a word is significant if the word occurs
# at least twice and is not a stop word.  The ratings agree with sumy's ratings.


def rank(sentences: Sequence[Sentence], stop_words: Set[str]) -> None:
    """Set the rank of each sentence by its rating; the most informative sentence gets rank 0.

    Sentences of equal rating rank in conversation order.
    """
    significant = significant_words([sentence.words for sentence in sentences], stop_words)
    best = sorted(sentences, key=lambda sentence: rate(sentence.words, significant), reverse=True)
    for number, sentence in enumerate(best):
        sentence.rank = number


def significant_words(sentences: Sequence[Sequence[str]], stop_words: Set[str]) -> set[str]:
    """Return the words that occur more than once in all sentences together, except stop words."""
    counts = Counter(word for words in sentences for word in words)
    return {word for word, count in counts.items() if count > 1 and word not in stop_words}


def rate(words: Sequence[str], significant: Collection[str]) -> float:
    """Return the rating of the best cluster of words in a sentence, or 0 without a cluster.

    A cluster starts and ends with a significant word.  At most ``_LARGEST_GAP`` insignificant words
    stand between two significant words.  The rating of a cluster is the squared number of its
    significant words, divided by the number of all its words.
    """
    clusters: list[list[int]] = []
    for position, word in enumerate(words):
        if word not in significant:
            continue
        if clusters and position - clusters[-1][-1] <= _LARGEST_GAP + 1:
            clusters[-1].append(position)
        else:
            clusters.append([position])
    return max(
        (len(one) ** 2 / (one[-1] - one[0] + 1) for one in clusters if len(one) > 1), default=0.0
    )


# Cue words
#
# Cue words show that a sentence names a next step, a finding or a wish.  The lists cover the
# languages most often used with agents.  In all remaining languages, only the rank decides.

_NEXT_STEP = re.compile(
    r"\b(next|then|todo|to do|still|remain\w*|pending|plan\w*|will|shall|should|need\w*|let'?s"
    r"|later|tomorrow|follow[- ]?up|waiting|open question\w*"
    r"|als nächstes|nächste\w*|noch|werde\w*|müssen|muss|sollte\w*|später|morgen|offen"
    r"|ensuite|prochain\w*|reste|devr\w+|faut|demain|à faire"
    r"|siguiente|próxim\w+|falta\w*|queda\w*|debe\w*|mañana|pendiente\w*|hay que"
    r"|далее|следующ\w+|нужно|надо|осталось|затем|завтра|будет|потом)\b"
    r"|接下来|下一步|需要|待办|还要|还没|尚未|之后|明天|準備|准备|计划|計劃|將會|将会|请你|然后再"
    r"|次に|これから|必要が|予定です|まだ|明日|残って|しましょう"
    r"|다음|아직|남은|남아|예정|해야|내일|앞으로"
    r"|بعد ذلك|التالي|يجب|سوف|غدا|لاحقا|המשך|הבא|צריך|מחר|נותר",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\b(because|caus\w+|error\w*|fail\w*|found|discover\w*|turns out|decid\w*|fixed|resolved"
    r"|instead|however|limit\w*|cannot|can'?t|does ?n[o']t work|result\w*|confirmed|wrong"
    r"|weil|fehler\w*|gefunden|entschied\w*|stattdessen|grenze|behoben|ursache"
    r"|parce que|erreur\w*|trouvé\w*|décid\w+|corrigé\w*|cause"
    r"|porque|encontr\w+|decid\w+|corregid\w+|causa"
    r"|потому|ошибк\w+|найден\w*|оказалось|решил\w*|исправ\w+|причин\w+)\b"
    r"|因为|因為|原因|错误|錯誤|发现|發現|失败|失敗|决定|決定|确认|確認|限制|无法|無法|结果|結果"
    r"|理由|エラー|見つ|判明|できません|なぜなら"
    r"|때문|오류|실패|발견|결정|확인|불가"
    r"|لأن|خطأ|فشل|وجد|قرر|בגלל|שגיאה|נכשל|נמצא|הוחלט",
    re.IGNORECASE,
)
_WISH = re.compile(
    r"\b(prefer\w*|always|never|please|must|do ?n[o']t|only|want\w*|like\w*|hate\w*|avoid"
    r"|remember|allerg\w*|budget|deadline|favou?rite|my|our"
    r"|bitte|immer|niemals|nie|lieber|möchte\w*|nur|mein\w*|unser\w*"
    r"|toujours|jamais|préfér\w+|veux|seulement|mon|mes|notre"
    r"|siempre|nunca|prefier\w+|quiero|solo|sólo|mi|mis|nuestr\w+"
    r"|всегда|никогда|пожалуйста|хочу|только|предпочита\w+|мой|мне|нам)\b"
    r"|喜欢|喜歡|不要|总是|總是|必须|必須|请|請|希望|偏好|记住|記住|只要|我们的|我的|预算|預算|过敏|過敏"
    r"|ください|いつも|好き|嫌い|絶対|だけ|欲しい|予算|アレルギー"
    r"|항상|절대|좋아|싫어|원해|부탁|주세요|예산|알레르기"
    r"|دائما|أبدا|أفضل|من فضلك|أريد|فقط|תמיד|לעולם|מעדיפ\w*|בבקשה|רוצה|רק",
    re.IGNORECASE,
)
