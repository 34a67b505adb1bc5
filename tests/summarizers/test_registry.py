"""Summarizers made from their configuration."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from memctl.errors import UsageError
from memctl.inference.settings import Prices, Settings
from memctl.machine.installation import install_command
from memctl.summarizers.registry import EXTRACTIVE, make_summarizer

OPENAI = {"model": "m", "base_url": "http://localhost:1/v1"}
COMMAND = {"command": "cat"}


def wrong(
    kind: str, options: dict[str, Any], secret: str | None = None, prompt: str | None = None
) -> UsageError:
    with pytest.raises(UsageError) as caught:
        make_summarizer(Settings("night", kind, options), secret, prompt)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": ""}, "model must be a text"),
        ({"model": 4}, "model must be a text"),
        ({"base_url": "localhost:11434"}, "base_url must be a URL"),
        ({"base_url": "ftp://host/"}, "base_url must be a URL"),
        ({"base_url": "http://[::1/v1"}, "base_url must be a URL"),
        ({"context_window": "32k"}, "context_window must be a whole number"),
        ({"context_window": True}, "context_window must be a whole number"),
        ({"context_window": 1000}, "context_window must be"),
        ({"context_window": 8000, "max_tokens": 7000}, "context_window must be"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds"),
        ({"max_retries": -1}, "max_retries must be a whole number of 0"),
        ({"concurrency": 0}, "concurrency must be a whole number of 1"),
        ({"input_price": "1.50"}, "input_price must be a number"),
        ({"output_price": -1}, "output_price must be a number"),
        ({"structured": "xml"}, "structured must be one of auto, schema, object, text"),
        ({"parameters": [1]}, "parameters must be a table"),
        ({"tokenizer": "/no/such/tokenizer.json"}, "cannot be read"),
    ],
)
def test_value_of_wrong_type_is_named(options: dict[str, Any], said: str) -> None:
    assert said in wrong("openai", OPENAI | options).message


@pytest.mark.parametrize("command", [None, "", " ", [], [1], {"a": 1}, ["a", 2]])
def test_command_must_be_text_or_list(command: Any) -> None:
    assert "command" in wrong("command", {"command": command}).message


def test_misspelt_key_gets_a_suggestion() -> None:
    assert "openai" in (wrong("opnai", {}).hint or "")
    assert "base_url" in (wrong("openai", OPENAI | {"baseurl": "x"}).hint or "")
    assert (
        "unknown key summarizers.night.model" in wrong("command", COMMAND | {"model": "m"}).message
    )


def test_model_and_key_are_required() -> None:
    assert "no model" in wrong("openai", {}).message
    assert "no key" in wrong("openai", {"model": "m"}).message
    secret = "sk-with a space"
    error = wrong("openai", OPENAI, secret)
    assert secret not in error.message + str(error.hint)
    make_summarizer(Settings("n", "openai", {"model": "m"}), "sk-123\n")


def test_prompt_is_refused_where_none_is_read() -> None:
    assert "prompt" in wrong("extractive", {}, prompt="be brief").message
    assert "prompt" in wrong("command", COMMAND | {"input": "transcript"}, prompt="be").message


def test_summarizer_has_the_configured_values() -> None:
    options = OPENAI | {
        "context_window": 100_000,
        "concurrency": 7,
        "input_price": 0.5,
        "output_price": 2,
        "max_tokens": 500,
        "max_retries": 0,
        "timeout": 1.5,
    }
    made = make_summarizer(Settings("night", "openai", options))
    assert (made.kind, made.name, made.window) == ("openai", "night", 100_000)
    assert made.concurrency == 7
    assert made.prices == Prices(0.5, 2.0)
    assert 600 < made.overhead < 2000
    longer = make_summarizer(Settings("night", "openai", options), prompt="word " * 1000)
    assert longer.overhead > made.overhead + 1000
    assert make_summarizer(Settings("n", "command", COMMAND)).prices is None


def test_every_kind_has_its_keys() -> None:
    for kind in ("openai", "command", "extractive"):
        assert "unknown key" in wrong(kind, {"modle": "x"}).message
    assert make_summarizer(EXTRACTIVE).prices is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "unwanted"),
    [
        ("extractive", ["openai", "json_repair", "tokenizers", "numpy"]),
        ("command", ["openai", "tokenizers", "sentencex", "stopwordsiso"]),
        ("openai", ["tokenizers", "sentencex", "stopwordsiso"]),
    ],
)
def test_making_a_kind_loads_only_what_it_needs(kind: str, unwanted: list[str]) -> None:
    options = {"extractive": {}, "command": COMMAND, "openai": OPENAI}[kind]
    script = (
        "import sys; from memctl.inference.settings import Settings; "
        "from memctl.summarizers.registry import make_summarizer; "
        f"make_summarizer(Settings('s', {kind!r}, {options!r})); "
        f"print([name for name in {unwanted!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "openai"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("memctl.summarizers.openai", "memctl.inference.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert wrong("openai", OPENAI).hint == install_command("openai")
    tokenizer = COMMAND | {"tokenizer": "/x.json"}
    assert install_command("tokens") in (wrong("command", tokenizer).hint or "")
