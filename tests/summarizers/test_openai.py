"""The ``openai`` summarizer, against servers that answer as real ones do."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from memctl.errors import Unavailable
from memctl.inference.errors import ModelError, TooLong, Unauthorised, Unreachable
from memctl.inference.settings import Settings
from memctl.inference.summary import Summary
from memctl.summarizer import Answer, Excerpt, Turn
from memctl.summarizers.openai import FormatNegotiator, OpenAI
from tests.summarizers import flavours
from tests.summarizers.server import SUMMARY, Answering, ModelServer, Reply, changed, says

KEY = "sk-proj-7hF3kQ92LmXv0TzR"
TALK = Excerpt([Turn("user", "user Anna", "Plan a trip."), Turn("assistant", "assistant", "Yes.")])
GOOD = Summary(**SUMMARY)


async def ask(
    server: ModelServer, excerpt: Excerpt = TALK, secret: str | None = None, **options: Any
) -> Answer:
    """Return the answer to one request, without retries."""
    settings = Settings("m", "openai", {"model": "m", "base_url": server.url} | options)
    async with OpenAI(settings, secret, None) as summarizer:
        return await summarizer.summarize(excerpt)


async def refused(*replies: Reply | Answering, **options: Any) -> ModelError:
    """Return the error for a reply."""
    with ModelServer(*replies) as server, pytest.raises(ModelError) as caught:
        await ask(server, **options)
    return caught.value


@pytest.mark.parametrize("flavour", flavours.GOOD)
async def test_structured_output_is_read(flavour: str) -> None:
    with ModelServer(flavours.GOOD[flavour](SUMMARY)) as server:
        answer = await ask(server)
    [request] = server.requests
    assert answer.summary == GOOD
    assert answer.usage.exact
    assert answer.usage.tokens_in == request.tokens
    assert request.path == "/v1/chat/completions"
    form = request.body["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"]["required"] == list(SUMMARY)
    assert form["schema"]["additionalProperties"] is False
    assert "JSON" in request.user  # DashScope's json_object wants the word in the messages


@pytest.mark.parametrize("message", flavours.NO_SCHEMA.values())
async def test_refused_form_is_not_requested_again(message: str) -> None:
    good = says(SUMMARY)
    limited = [flavours.without_forms("json_schema", "json_object", message=message, good=good)] * 4
    settings = {"model": "m"}
    with ModelServer(*limited) as server:
        settings |= {"base_url": server.url}
        async with OpenAI(Settings("m", "openai", settings), None, None) as summarizer:
            assert (await summarizer.summarize(TALK)).summary == GOOD
            assert (await summarizer.summarize(TALK)).summary == GOOD
    assert [one.form for one in server.requests] == ["json_schema", "json_object", "text", "text"]


async def test_concurrent_requests_step_down_together() -> None:
    limited = flavours.without_forms("json_schema", message="no json_schema", good=says(SUMMARY))
    with ModelServer(*[limited] * 20) as server:
        settings = Settings("m", "openai", {"model": "m", "base_url": server.url})
        async with OpenAI(settings, None, None) as summarizer:
            await asyncio.gather(*(summarizer.summarize(TALK) for _ in range(8)))
    assert {one.form for one in server.requests} == {"json_schema", "json_object"}


def test_late_refusal_takes_no_further_step() -> None:
    negotiator = FormatNegotiator("auto")
    late = negotiator.current
    assert negotiator.step_down(negotiator.current, 400, "no response_format")
    assert negotiator.step_down(negotiator.current, 422, "no response_format")
    assert negotiator.step_down(late, 400, "no response_format")
    assert negotiator.current.form == "text"
    assert not negotiator.step_down(negotiator.current, 400, "no response_format")


async def test_configured_form_is_the_only_one() -> None:
    message = flavours.NO_SCHEMA["deepseek"]
    limited = flavours.without_forms("json_schema", message=message, good=says(SUMMARY))
    assert (await refused(limited, structured="schema")).code == "rejected"
    with ModelServer() as server:
        await ask(server, structured="text")
    assert server.requests[0].form == "text"


async def test_reasoning_model_gets_max_completion_tokens() -> None:
    told = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    )
    with ModelServer(flavours.error(400, told, "unsupported_parameter")) as server:
        assert (await ask(server, max_tokens=900)).summary == GOOD
    first, second = server.requests
    assert first.body["max_tokens"] == 900
    assert second.body["max_completion_tokens"] == 900
    assert "max_tokens" not in second.body
    assert second.form == "json_schema"


@pytest.mark.parametrize(
    "content",
    [
        "Here is the summary you asked for:\n\n" + json.dumps(SUMMARY) + "\n\nAnything else?",
        "```json\n" + json.dumps(SUMMARY, indent=2) + "\n```",
        json.dumps(SUMMARY).replace('"current_state"', "'current_state'"),
        json.dumps(SUMMARY)[:-1] + ",}",
        "<think>The user wants {JSON}. {\"task_overview\": 1}</think>\n" + json.dumps(SUMMARY),
        json.dumps({"summary": SUMMARY}),
    ],
    ids=["prose", "fence", "broken quotes", "comma", "thoughts", "wrapped"],
)  # fmt: skip
async def test_json_in_fences_or_prose_is_read(content: str) -> None:
    with ModelServer(says(content)) as server:
        assert (await ask(server)).summary == GOOD


async def test_content_parts_are_joined() -> None:
    text = json.dumps(SUMMARY)
    parts = [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]
    with ModelServer(says(parts)) as server:
        assert (await ask(server)).summary == GOOD


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (changed(says(SUMMARY), choices=[]), "bad-reply"),
        (changed(says(SUMMARY), choices=None), "bad-reply"),
        (changed(says(SUMMARY), choices=[{"finish_reason": "stop"}]), "bad-reply"),
        (says(""), "bad-reply"),
        (says(None, reasoning_content="I thought, and said nothing"), "bad-reply"),
        (says("I would rather talk of the weather."), "bad-reply"),
        (says(SUMMARY | {"next_steps": 7}), "bad-reply"),
        (says({name: SUMMARY[name] for name in list(SUMMARY)[:4]}), "bad-reply"),
        (says(SUMMARY, "length"), "cut-off"),
        (says(json.dumps(SUMMARY)[:-9], "length"), "cut-off"),
        (says(SUMMARY, "content_filter"), "refused"),
        (says(None, refusal="I'm sorry, I can't help with that."), "refused"),
    ],
)
async def test_bad_reply_is_counted_and_allows_retry(answer: Answering, code: str) -> None:
    error = await refused(answer)
    assert (error.code, error.retry) == (code, True)
    assert error.usage.exact
    assert error.usage.tokens_in > 100


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>It works!</html>", headers={"content-type": "text/html"}),
        Reply(b'{"choices": [', headers={"content-type": "application/json"}),
        Reply([1, 2]),
        Reply(b"[" * 100_000),
    ],
)
async def test_response_without_completion_is_bad_reply(reply: Reply) -> None:
    error = await refused(reply)
    assert (error.code, error.retry) == ("bad-reply", True)


async def test_json_with_text_content_type_is_read() -> None:
    def plain(request: Any) -> Reply:
        return Reply(says(SUMMARY)(request).body, headers={"content-type": "text/plain"})

    with ModelServer(plain) as server:
        assert (await ask(server)).summary == GOOD


async def test_missing_usage_is_counted() -> None:
    with ModelServer(changed(says(SUMMARY), usage=None)) as server:
        usage = (await ask(server)).usage
    assert not usage.exact
    assert usage.tokens_in >= server.requests[0].tokens
    assert usage.tokens_out >= len(json.dumps(SUMMARY)) // 4


@pytest.mark.parametrize("wording", flavours.TOO_LONG)
async def test_too_long_is_recognized_in_every_wording(wording: str) -> None:
    assert isinstance(await refused(flavours.TOO_LONG[wording]), TooLong)


async def test_conversation_cut_by_the_server_is_too_long() -> None:
    long = Excerpt([Turn("user", "user", "All of this matters a lot. " * 1200)])
    ollama = flavours.cut_to(4096, says(SUMMARY))
    error = await refused(ollama, excerpt=long)
    assert isinstance(error, TooLong)
    assert error.usage.tokens_in == 2048
    short = Excerpt([Turn("user", "user", "All of this matters a lot. " * 300)])
    with ModelServer(ollama) as server:
        assert (await ask(server, short)).summary == GOOD


@pytest.mark.parametrize("flavour", flavours.NO_MODEL)
async def test_missing_model_ends_run(flavour: str) -> None:
    with ModelServer(flavours.NO_MODEL[flavour]) as server, pytest.raises(Unauthorised) as caught:
        await ask(server)
    assert "'m'" in (caught.value.hint or "")


@pytest.mark.parametrize("flavour", flavours.NO_CREDIT)
async def test_empty_account_ends_run(flavour: str) -> None:
    with ModelServer(flavours.NO_CREDIT[flavour]) as server, pytest.raises(Unauthorised) as caught:
        await ask(server)
    assert "billing" in (caught.value.hint or "")


async def test_key_is_sent_and_wrong_key_ends_run() -> None:
    with ModelServer(key=KEY) as server:
        assert (await ask(server, secret=KEY)).summary == GOOD
        with pytest.raises(Unauthorised):
            await ask(server, secret="sk-other")
        with pytest.raises(Unauthorised):
            await ask(server)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500])
async def test_key_is_in_no_message(status: int) -> None:
    for said in (KEY, f"got '{KEY}'", KEY[:16] + "...", "sk-proj-****0TzR"):
        reply = flavours.error(status, f"wrong: {said}\x1b[31m\nand more")
        with ModelServer(reply) as server, pytest.raises((ModelError, Unavailable)) as caught:
            await ask(server, secret=KEY)
        shown = f"{caught.value.message} {getattr(caught.value, 'hint', '')} {caught.value}"
        assert KEY[8:14] not in shown
        assert "0TzR" not in shown
        assert "\x1b" not in shown
        assert "\n" not in shown


async def test_login_in_url_is_not_shown() -> None:
    with ModelServer(Reply({}, 500)) as server, pytest.raises(ModelError) as caught:
        await ask(server, base_url=server.url.replace("//", "//anna:s3cret@"))
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "date"])
async def test_rate_limit_has_its_wait(name: str) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=7), usegmt=True)
    headers = {
        "retry-after": {"Retry-After": "7"},
        "retry-after-ms": {"retry-after-ms": "7000", "Retry-After": "99"},
        "date": {"Retry-After": soon},
    }[name]
    error = await refused(Reply({"error": {"message": "slow down"}}, 429, headers))
    assert (error.code, error.retry) == ("rate-limited", True)
    assert error.after == pytest.approx(7, abs=1.5)


@pytest.mark.parametrize("value", ["soon", "nan", "", "Wed, 99 Foo 2026"])
async def test_invalid_wait_is_ignored(value: str) -> None:
    error = await refused(Reply({}, 429, {"Retry-After": value}))
    assert error.after is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(status: int) -> None:
    """A conversation goes to the configured host alone."""
    with ModelServer(says(SUMMARY)) as elsewhere:
        reply = Reply({}, status, {"Location": f"{elsewhere.url}/chat/completions"})
        with ModelServer(reply) as server, pytest.raises(Unreachable) as caught:
            await ask(server)
    assert elsewhere.requests == []
    assert f"redirects to {elsewhere.url}/chat/completions ({status})" in caught.value.message
    assert caught.value.hint == "set base_url to the address that answers"


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
async def test_server_error_allows_retry(status: int) -> None:
    error = await refused(Reply({"error": {"message": "overloaded"}}, status, {"Retry-After": "3"}))
    assert (error.code, error.retry, error.after) == ("server-error", True, 3)
    assert "overloaded" in error.message


async def test_rejected_request_allows_no_retry() -> None:
    error = await refused(flavours.error(400, "Unknown parameter: 'temprature'."))
    assert (error.code, error.retry) == ("rejected", False)
    assert "temprature" in error.message
    barred = await refused(flavours.error(400, "inappropriate content", "data_inspection_failed"))
    assert (barred.code, barred.retry) == ("refused", False)


@pytest.mark.parametrize("reply", [Reply({}, delay=30), Reply({"choices": []}, trickle=0.05)])
async def test_hanging_and_trickling_servers_time_out(reply: Reply) -> None:
    begun = time.monotonic()
    error = await refused(reply, timeout=0.3)
    assert (error.code, error.retry) == ("timeout", True)
    assert time.monotonic() - begun < 2


async def test_broken_connection_allows_retry() -> None:
    error = await refused(Reply({"choices": []}, broken=True))
    assert (error.code, error.retry) == ("server-error", True)


async def test_closed_port_is_unreachable() -> None:
    with ModelServer() as server:
        pass
    with pytest.raises(Unreachable) as caught:
        await ask(server)
    assert "127.0.0.1" in caught.value.message
    with pytest.raises(Unreachable):
        await ask(server, base_url="http://no-such-host.invalid/v1")


async def test_failed_tls_handshake_is_unreachable() -> None:
    with ModelServer() as server, pytest.raises(Unreachable):
        await ask(server, base_url=server.url.replace("http:", "https:"))


async def test_parameters_are_sent() -> None:
    parameters = {"temperature": 0.2, "enable_thinking": False}
    with ModelServer() as server:
        await ask(server, parameters=parameters)
    assert server.requests[0].body.items() >= parameters.items()


async def test_environment_does_not_change_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ModelServer() as server, ModelServer() as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
            monkeypatch.setenv(f"OPENAI_{name}", KEY)
        await ask(server)
        settings = Settings("m", "openai", {"model": "m"})
        assert "api.openai.com" in OpenAI(settings, KEY, None)._server.address
    assert not other.requests
    assert KEY not in json.dumps(server.requests[0].headers)


async def test_half_characters_are_replaced() -> None:
    with ModelServer(says('{"task_overview": "\\ud83d", ' + json.dumps(SUMMARY)[1:])) as server:
        answer = await ask(server, Excerpt([Turn("user", "user", "half \ud83d of it \x00")]))
    assert "half \ufffd of it" in server.requests[0].user
    assert isinstance(answer.summary, Summary)


async def test_cancelled_request_ends_at_once() -> None:
    with ModelServer(Reply({}, delay=30)) as server:
        task = asyncio.create_task(ask(server))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
