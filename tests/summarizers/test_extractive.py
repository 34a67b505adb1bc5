"""The summarizer without a model: the sentences it picks, in any script."""

from __future__ import annotations

import random
import socket
import time

import pytest
from msgspec.structs import astuple

from memctl.inference.errors import ModelError
from memctl.inference.settings import Usage
from memctl.inference.summary import LIMITS, Summary, read_headings
from memctl.inference.tokens import estimate
from memctl.summarizer import Excerpt, Turn
from memctl.summarizers.extractive import (
    WINDOW,
    extract,
    prose,
    rate,
    recognize_language,
    significant_words,
    split,
    stop_words,
    words,
)
from memctl.summarizers.registry import EXTRACTIVE, make_summarizer
from tests.summarizers.conversations import ARABIC, CHINESE, EMOJI, ENGLISH, GERMAN, HINDI, JAPANESE

TALKS = {
    "english": ENGLISH,
    "german": GERMAN,
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "arabic": ARABIC,
    "hindi": HINDI,
    "emoji": EMOJI,
}


def test_english_summary_has_the_expected_sentences() -> None:
    summary = extract(Excerpt(ENGLISH))
    assert summary.task_overview.startswith("I need help planning a trip to Kyoto for my family.")
    assert "Kamo House is booked" in summary.current_state
    assert "KH-20931" in summary.current_state
    assert "closed on April 9" in summary.important_discoveries
    assert summary.next_steps.startswith("Next I will look for restaurants without peanuts")
    assert "allergic to peanuts" in summary.context_to_preserve


def test_chinese_summary_has_the_expected_sentences() -> None:
    summary = extract(Excerpt(CHINESE))
    assert "请帮我分析一下上个季度的销售数据。" in summary.task_overview
    assert "报告的前半部分，保存在 report.md。" in summary.current_state
    assert "主要原因是广州的两家门店关闭。" in summary.important_discoveries
    assert "报告请用中文写，不要超过两页。" in summary.context_to_preserve
    assert summary.next_steps == "接下来我需要补充西北地区八月份的数据，然后写结论。"
    assert "。 " not in "".join(astuple(summary))


def test_next_steps_are_found_in_other_languages() -> None:
    assert "يجب أن ترسل لي" in extract(Excerpt(ARABIC)).next_steps
    assert "Als Nächstes" in extract(Excerpt(GERMAN)).next_steps
    assert "次に" in extract(Excerpt(JAPANESE)).next_steps


@pytest.mark.parametrize("name", TALKS)
def test_summary_contains_only_sentences_of_the_conversation_once(name: str) -> None:
    turns = TALKS[name]
    summary = extract(Excerpt(turns * 2))
    said = " ".join(" ".join(turn.text.replace("**", "").split()) for turn in turns)
    assert summary.task_overview
    assert summary.current_state
    picked = [one for field in astuple(summary) for line in prose(field) for one in split(line)]
    assert len(picked) >= 3
    assert len(picked) == len(set(picked))
    for sentence in picked:
        assert sentence.removesuffix("…") in said


@pytest.mark.parametrize("name", TALKS)
def test_fields_keep_their_limits(name: str) -> None:
    # No end of a sentence anywhere.
    endless = [turn._replace(text=" ".join(turn.text.split()) * 9) for turn in TALKS[name]]
    endless += [Turn("assistant", "a", "word " * 2000), Turn("user", "u", "语" * 2000)]
    for turns in (TALKS[name], TALKS[name] * 20, endless):
        summary = extract(Excerpt(turns))
        for field, limit in LIMITS.items():
            assert len(getattr(summary, field)) <= limit


def test_summary_is_deterministic() -> None:
    assert {astuple(extract(Excerpt(ENGLISH))) for _ in range(3)} == {
        astuple(extract(Excerpt(ENGLISH)))
    }


def test_earlier_summary_is_folded_in() -> None:
    first = extract(Excerpt(ENGLISH[:6]))
    folded = extract(Excerpt(ENGLISH[6:], earlier=first.render()))
    assert folded.task_overview.startswith("I need help planning a trip to Kyoto")
    assert "KH-20931" in folded.current_state
    assert "not available on April 9" in folded.important_discoveries
    assert "allergic to peanuts" in " ".join(astuple(folded))
    assert "# Task" not in folded.render().replace("# Task Overview\n", "", 1)


def test_earlier_summary_without_headings_is_folded_in() -> None:
    earlier = "<system-info>The user Anna lives in Vienna with her two children.</system-info>"
    folded = extract(Excerpt(ENGLISH, earlier=earlier))
    assert "Anna lives in Vienna" in " ".join(astuple(folded))
    assert "system-info" not in " ".join(astuple(folded))


def test_summaries_of_parts_become_one() -> None:
    parts = [extract(Excerpt(ENGLISH[:5])), extract(Excerpt(ENGLISH[5:]))]
    labelled = [Turn("summary", f"part {n}", part.labelled()) for n, part in enumerate(parts)]
    summary = extract(Excerpt(labelled))
    assert summary.task_overview.startswith("I need help planning a trip to Kyoto")
    assert "KH-20931" in summary.current_state
    assert "Next I will look for restaurants" in summary.next_steps
    plain = [turn._replace(text="\n".join(filter(None, astuple(part))))
             for turn, part in zip(labelled, parts, strict=True)]  # fmt: skip
    assert "Kyoto" in extract(Excerpt(plain)).task_overview


def test_labelled_summary_is_read_back() -> None:
    summary = extract(Excerpt(ENGLISH))
    assert read_headings(summary.labelled()) == summary
    assert read_headings(summary.render()) == summary
    assert read_headings("# Next Steps\nlater\n\n# Task Overview\nfirst") is None
    assert read_headings("") is None
    empty = Summary("", "", "", "", "")
    assert read_headings(empty.labelled()) == empty


def test_headings_of_empty_fields_are_left_out() -> None:
    for filled in ("task_overview", "important_discoveries", "context_to_preserve"):
        summary = Summary(**{name: "a fact" if name == filled else "" for name in LIMITS})
        text = summary.render()
        heading = filled.replace("_", " ").title().replace(" To ", " to ")
        body = f"# {heading}\na fact"
        assert text == (
            f"<system-info>Here is a summary of your previous work\n{body}</system-info>"
        )
        assert read_headings(text) == summary
    template = "## Now\n{current_state}\nGo on.\n## Then\n{next_steps}\n"
    nothing = Summary("", "", "", "", "")
    assert nothing.render(template) == "## Now\n\nGo on.\n"


def test_code_tables_and_arguments_are_not_picked() -> None:
    noise = (
        "```python\nprint('Do not pick this line of code, whatever it says.')\n```\n"
        "| name | price of the room |\n|---|---|\n"
        '[calls search] {"query": "the apartments near the station"}\n'
        '{"json": "is not what a person says to another person"}\n'
        "# Results\n- **Kamo House** is the best of the three apartments.\n"
    )
    summary = extract(Excerpt([*ENGLISH[:3], Turn("assistant", "assistant", noise)]))
    text = " ".join(astuple(summary))
    for unwanted in ("code", "|", "query", "json", "**", "- "):
        assert unwanted not in text
    assert "Kamo House is the best of the three apartments." in text


def test_short_conversation_is_still_summarized() -> None:
    assert extract(Excerpt([Turn("user", "user", "Hi!")])).task_overview == "Hi!"
    image = [Turn("user", "user", "[image: image/png, 2,000 bytes]")]
    assert extract(Excerpt(image)).task_overview == "[image: image/png, 2,000 bytes]"
    half = [Turn("user", "user", "A half \ud83d character is in this sentence.")]
    assert "\ufffd" in extract(Excerpt(half)).task_overview
    for turns in ([], [Turn("user", "user", " \n")]):
        with pytest.raises(ModelError) as caught:
            extract(Excerpt(turns))
        assert not caught.value.retry


def test_words_of_each_script() -> None:
    assert words("The user's re-run, THE 2nd!") == ["the", "user", "s", "re", "run", "the", "nd"]
    assert words("销售额下降") == ["销售", "售额", "额下", "下降"]
    assert words("用Python写") == ["用", "python", "写"]
    assert words("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert words("안녕하세요 여러분") == ["안녕하세요", "여러분"]
    assert words("123 ...") == []


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "The agent should look at the invoices and tell me which of them are missing."),
        ("de", "Bitte prüfe die Rechnungen und sag mir, welche davon nicht vollständig sind."),
        ("fr", "Merci de vérifier les factures et de me dire lesquelles ne sont pas complètes."),
        ("es", "Por favor revisa las facturas de la carpeta y dime cuáles no están completas."),
        ("nl", "Controleer de facturen in de map en vertel me welke daarvan niet volledig zijn."),
        ("pl", "Sprawdź faktury w folderze i powiedz mi, które z nich nie są kompletne."),
        (
            "tr",
            "Lütfen klasördeki faturaları kontrol et ve hangilerinin eksik olduğunu söyle.",
        ),
        ("ru", "Пожалуйста, проверь счета в папке и скажи мне, какие из них не полные."),
        ("ar", "من فضلك تحقق من الفواتير في المجلد وقل لي أي منها ليست كاملة."),
        ("fa", "لطفا فاکتورهای پوشه را بررسی کن و به من بگو کدام یک از آنها کامل نیست."),
        ("hi", "कृपया फ़ोल्डर में रखे बिल देखो और मुझे बताओ कि इनमें से कौन से पूरे नहीं हैं।"),
        ("zh", "请检查文件夹里的发票，然后告诉我其中哪些是不完整的，因为我们需要它们。"),
        (
            "ja",
            "フォルダーの請求書を確認して、どれが足りないのかを教えてください。",
        ),
        ("ko", "폴더에 있는 청구서를 확인하고 어떤 것이 빠졌는지 나에게 말해 주세요. 그리고 모두."),
    ],
)
def test_language_is_recognized_by_its_stop_words(language: str, text: str) -> None:
    assert recognize_language([text]) == language
    assert stop_words(language) & set(words(text))


@pytest.mark.parametrize("texts", [[], [""], ["12345 ..."], ["Xyzzy qwfp"]])
def test_language_of_no_words_is_not_guessed(texts: list[str]) -> None:
    assert recognize_language(texts) is None
    assert stop_words(None) == frozenset()


def test_sentences_end_as_their_language_has_it() -> None:
    text = "Am 3. Oktober kam Dr. Huber. Er blieb."
    assert split(text, "de") == ["Am 3. Oktober kam Dr. Huber.", "Er blieb."]
    assert split(text, "en") == ["Am 3.", "Oktober kam Dr. Huber.", "Er blieb."]
    assert split("First. Second.", "xx") == split("First. Second.") == ["First.", "Second."]


def test_stop_words_do_not_count_as_significant() -> None:
    sentences = [words("The fox saw the hen"), words("The hen saw nothing")]
    assert significant_words(sentences, frozenset({"the"})) == {"saw", "hen"}


def test_rating_is_that_of_the_best_cluster() -> None:
    significant = {"a", "b"}
    assert rate([], significant) == 0
    assert rate(list("xax"), significant) == 0
    assert rate(list("xabx"), significant) == 2
    assert rate(list("axxxb"), significant) == 4 / 5
    assert rate(list("axxxxb"), significant) == 0
    assert rate(list("axbxxxxaba"), significant) == 3


async def test_extractive_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the network is asked for")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    async with make_summarizer(EXTRACTIVE) as summarizer:
        answer = await summarizer.summarize(Excerpt(ENGLISH))
    assert isinstance(answer.summary, Summary)
    assert answer.usage == Usage(exact=True)


def test_extractive_summary_of_a_part_is_fast() -> None:
    chance = random.Random(5)
    some = [f"word{number}" for number in range(3000)]
    turns = []
    while sum(estimate(turn.text) for turn in turns) < WINDOW:
        text = ". ".join(" ".join(chance.choices(some, k=12)) for _ in range(4))
        turns.append(Turn(chance.choice(["user", "assistant"]), "somebody", text + "."))
    extract(Excerpt(ENGLISH))  # what is loaded once
    begun = time.process_time()
    extract(Excerpt(turns))
    assert time.process_time() - begun < 1
