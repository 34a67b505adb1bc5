"""Known items in languages with and without spaces, and queries of one and two characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.finding import ADA, find, ids, make
from tests.support.cli import Run, report

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


OTHERS = {
    "chinese": ["北边的天气很冷", "我想学做菜", "下雨了,带上雨伞。", "机器坏了,车也丢了"],
    "japanese": ["水が清い", "東京の天気は晴れです", "寺の前で待っています", "でもドアが開かない"],
    "korean": ["서쪽에서 해가 집니다", "오늘은 날씨가 좋아요", "부산에서 만나요"],
    "thai": ["วันนี้อากาศดีมาก", "ฉันชอบกินข้าวผัด", "เขาทำงานที่กรุงเทพ"],
    "arabic": ["الطقس جميل اليوم", "أحب قراءة الكتب", "ذهبنا إلى السوق"],
    "hindi": ["आज मौसम अच्छा है", "मैं किताब पढ़ता हूँ", "वह बाज़ार गया"],
    "russian": ["Сегодня хорошая погода", "Я читаю книгу", "Мы были на рынке"],
    "german": ["Heute ist das Wetter schön", "Der Hund schläft im Garten", "Ich lese ein Buch"],
    "emoji": ["what a night 🎊", "nobody won 🥈", "💔 and 👨‍👩‍👦 and 🌧️"],
    "english": ["The report of last year", "A quarter to nine", "It is due to the weather"],
}
"""Messages next to the known items, which have some of their characters."""
SHORT = [
    ("chinese", "票"),
    ("chinese", "出差"),
    ("japanese", "都"),
    ("japanese", "へ桜"),
    ("korean", "표"),
    ("korean", "내일"),
    ("thai", "เช"),
    ("thai", "ให"),
    ("arabic", "من"),
    ("hindi", "कल"),
    ("russian", "в"),
    ("german", "in"),
    ("emoji", "🏆"),
    ("emoji", "🎉🎉"),
    ("wide", "ｶﾀ"),
]
"""Queries of one and two characters."""


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


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which each known item is one of several messages of its language."""
    sessions = {
        ADA._replace(session=name): [*OTHERS.get(name, ())[:2], text, *OTHERS.get(name, ())[2:]]
        for name, text in TEXTS.items()
    }
    return make(tmp_path_factory.mktemp("crowded") / "a.db", sessions)


@pytest.mark.parametrize(("language", "query"), [*QUERIES, *SHORT])
def test_search_command_finds_the_known_item_first(
    run: Run, crowded: Path, language: str, query: str
) -> None:
    found = report(run("search", crowded, query, "--json"))
    best = found["hits"][0]
    assert best["session"] == language
    assert best["position"] == 1 + len(OTHERS.get(language, ())[:2])
    shown = run("search", crowded, query, "--top", "1").stdout
    assert shown.splitlines()[1].strip() == best["snippet"].strip()
    [id] = run("search", crowded, query, "--top", "1", "--ids").stdout.split()
    assert id == best["id"]


ODD = {
    "NUL": "京都\0umbrella",
    "an open quote": '"清水寺',
    "quotes in words": '清"水"寺',
    "operators": "清水寺 AND (NOT OR NEAR/3) ^c ~d +b {text}:",
    "SQL": "清水寺'; DROP TABLE words; --",
    "half a character": "清水寺 \ud83d",
    "control characters": "清水寺 \x01\x02\x1b[31m\x1e\x1f",
    "10,000 characters": "清水寺" + "京都の" * 3333,
    "10,000 words": "清水寺 " + "umbrella " * 10_000,
    "10,000 emoji": "清水寺 " + "🦄" * 10_000,
    "10,000 quotes": "清水寺 " + '"' * 10_000,
    "10,000 minuses": "清水寺 " + "-" * 10_000,
    "many exclusions": "清水寺 " + " ".join(f"-w{number}" for number in range(1500)),
    "many phrases": " ".join('"清水寺"' for _ in range(2000)),
}


@pytest.mark.parametrize("query", ODD.values(), ids=ODD)
def test_search_command_takes_odd_queries(run: Run, crowded: Path, query: str) -> None:
    found = report(run("search", crowded, query, "--json"))
    assert found["hits"][0]["session"] == "japanese"
    assert run("search", crowded, query).exit_code == 0
    done = run("search", crowded, query, "--no-index", "--ids")
    assert done.stdout.split()[0] == found["hits"][0]["id"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("出租车", ["m0"]),
        ("出租", ["m0", "m1", "m3"]),
        ("租车", ["m0", "m2"]),
        ("出租 租车", ["m0", "m1", "m2", "m3"]),
        ("出租车司机", ["m3"]),
        ("東京旅行", ["m4"]),
        ("โรงพยาบาล", ["m5"]),
    ],
)
def test_search_hits_have_the_characters_together(
    tmp_path: Path, query: str, found: list[str]
) -> None:
    texts = [
        *("我们叫了出租车", "房子出租", "他想租车", "那个司机出租汽车司机", "東京への旅行です"),
        *("เขาไปโรงพยาบาลเมื่อวาน", "ฉันอยากไปเที่ยวโรงเรียน"),
    ]
    path = make(tmp_path / "a.db", {ADA: texts})
    assert sorted(ids(find(path, query=query))) == sorted(found)


def test_search_two_characters_that_are_not_together_are_not_found(store: Path) -> None:
    assert find(store, query="京差").hits == []
    assert ids(find(store, query='"订机"')) == ["m0"]
