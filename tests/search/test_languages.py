"""Known items in languages with and without spaces, and queries of one and two characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.finding import ADA, find, ids, make

TEXTS = {
    "chinese": "我下周要去北京出差,请帮我订机票和酒店。",
    "japanese": "京都の清水寺へ桜を見に行きたいです。データを送ってください。",
    "korean": "내일 서울에서 회의가 있으니 기차표를 예약해 주세요.",
    "thai": "ฉันอยากไปเที่ยวเชียงใหม่ในเดือนหน้า",
    "arabic": "أريد حجز غرفة في فندق قريب من المطار",
    "hindi": "मुझे कल दिल्ली जाने के लिए टिकट चाहिए",
    "russian": "Завтра утром поезд в Москву отправляется в семь часов",
    "german": "Die Größe der Häuser in München überrascht jeden Besucher",
    "emoji": "what a day 🎉🎉 we won 🏆 and the ❤️ goes to all 👩‍👩‍👧",
    "english": "The quarterly report is due on Friday",
    "wide": "ＡＢＣ　Ｃｏｍｐａｎｙ sent the invoice ｶﾀｶﾅ",
}
QUERIES = [
    ("chinese", "机票"),
    ("chinese", "北京出差"),
    ("chinese", "京出"),
    ("chinese", "订"),
    ("chinese", "酒店 机票"),
    ("japanese", "清水寺"),
    ("japanese", "桜"),
    ("japanese", "データ"),
    ("japanese", "京都へ行きたい"),
    ("korean", "서울"),
    ("korean", "회의"),
    ("korean", "기차표 예약"),
    ("thai", "เชียงใหม่"),
    ("thai", "เดือนหน้า"),
    ("arabic", "فندق"),
    ("arabic", "فُنْدُق"),
    ("arabic", "غرفة المطار"),
    ("hindi", "दिल्ली"),
    ("hindi", "टिकट चाहिए"),
    ("russian", "поезд"),
    ("russian", "МОСКВУ"),
    ("german", "grosse größe"),
    ("german", "münchen"),
    ("german", "munchen"),
    ("german", "HÄUSER"),
    ("emoji", "🏆"),
    ("emoji", "🎉"),
    ("emoji", "❤"),
    ("emoji", "👩"),
    ("emoji", "won🏆"),
    ("english", "quarterly"),
    ("wide", "abc company"),
    ("wide", "カタカナ"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a session of one message for each language."""
    path = tmp_path_factory.mktemp("languages") / "a.db"
    return make(path, {ADA._replace(session=name): [text] for name, text in TEXTS.items()})


@pytest.mark.parametrize(("language", "query"), QUERIES)
def test_search_finds_the_known_item(store: Path, language: str, query: str) -> None:
    found = find(store, query=query)
    assert found.hits, query
    assert found.hits[0].key.session == language


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_search_snippet_shows_what_was_found(store: Path, query: str) -> None:
    hit = find(store, query=query).hits[0]
    shown = [hit.snippet[start:end] for start, end in hit.spans]
    assert shown, hit
    assert all(shown)
    assert not {"\x01", "\x02", "\x1e", "\x1f"} & set(hit.snippet)


def test_search_two_characters_that_are_not_together_are_not_found(store: Path) -> None:
    assert find(store, query="京差").hits == []
    assert ids(find(store, query='"订机"')) == ["m0"]
