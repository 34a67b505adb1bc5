"""``memctl.text.html``: stored texts in pages are shown, never obeyed."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from memctl.text.html import environment


def rendered(template: str, **values: object) -> str:
    return environment("memctl.output").from_string(template).render(values)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (
            "<script>alert('1')</script>&\"",
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&#34;",
        ),
        ("one\r\ntwo\tthree\u3000\u202fx\u00a0y", "one\ntwo\tthree\u3000\u202fx\u00a0y"),
        (
            "\x1b[31m\0\x07 \ud800 \u202egnp.exe \u2066x \u2028",
            "\\x1b[31m\\x00\\x07 \\ud800 \\u202egnp.exe \\u2066x \\u2028",
        ),
        ("می\u200cخواهم 👩\u200d💻 한국어 שלום", "می\u200cخواهم 👩\u200d💻 한국어 שלום"),
    ],
)
def test_html_text_is_shown_never_obeyed(stored: str, shown: str) -> None:
    assert rendered("{{ stored }}", stored=stored) == shown


def test_html_names_have_one_line_and_a_direction_of_their_own() -> None:
    assert (
        rendered("{{ stored | name }}", stored='a\n\u202eb"<') == "<bdi>a\\n\\u202eb&#34;&lt;</bdi>"
    )
    assert rendered("{{ stored | line }}", stored='a\r\n\u05d0"') == "a\\r\\n\u05d0&#34;"


def test_html_data_for_scripts_cannot_end_its_element() -> None:
    assert rendered("{{ data | tojson }}", data={"a": "</script>&\u2028é"}) == (
        '{"a":"\\u003c/script\\u003e\\u0026\\u2028\\u00e9"}'
    )


def test_html_of_an_unknown_name_fails() -> None:
    with pytest.raises(UndefinedError):
        rendered("{{ stored }}")
