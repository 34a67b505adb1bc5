"""Retries: how often, after which failures, and with what usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from memctl.errors import Unavailable
from memctl.inference.errors import ModelError, TooLong, Unauthorised, Unreachable
from memctl.inference.retrying import RequestRetries
from memctl.inference.settings import Usage
from memctl.summarizer import Answer, Excerpt, Summarizer

PAID = Usage(100, 10, exact=True)
DONE = Answer("done", PAID)


class Scripted(Summarizer):
    """A summarizer that raises the given errors, then is done."""

    kind = "scripted"
    name = "scripted"
    window = 1000
    overhead = 10

    def __init__(self, errors: Sequence[Exception]) -> None:
        self.calls = 0
        self._errors = list(errors)

    async def summarize(self, _: Excerpt) -> Answer:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return DONE


def failed(code: str = "server-error", after: float | None = None) -> ModelError:
    return ModelError(code, f"it is {code}", retry=True, after=after, usage=PAID)


class Asked:
    """Requests to a summarizer, with retries."""

    def __init__(self, inner: Summarizer, retries: int) -> None:
        self.retries = RequestRetries(retries, first_pause=0.001)
        self._inner = inner

    async def __call__(self) -> Answer:
        answer, spent, _ = await self.retries.run(lambda: self._inner.summarize(Excerpt([])))
        return Answer(answer.summary, spent.plus(answer.usage))


def patient(*errors: Exception, retries: int = 4) -> tuple[Scripted, Asked]:
    inner = Scripted(errors)
    return inner, Asked(inner, retries)


async def test_retries_go_on_until_an_answer_and_add_usage() -> None:
    inner, asked = patient(*[failed() for _ in range(4)])
    answer = await asked()
    assert inner.calls == 5
    assert answer.usage == Usage(500, 50, exact=True)


async def test_error_has_the_number_of_attempts() -> None:
    inner, asked = patient(*[failed() for _ in range(9)])
    with pytest.raises(ModelError) as caught:
        await asked()
    assert inner.calls == 5
    assert caught.value.message == "it is server-error (given up after 5 attempts)"
    assert caught.value.usage == Usage(500, 50, exact=True)


@pytest.mark.parametrize("code", ["bad-reply", "refused", "cut-off"])
async def test_paid_failure_is_retried_twice(code: str) -> None:
    inner, asked = patient(*[failed(code) for _ in range(9)])
    with pytest.raises(ModelError):
        await asked()
    assert inner.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        ModelError("rejected", "no"),
        TooLong("too long"),
        Unauthorised("not you"),
        Unavailable("no program"),
        asyncio.CancelledError(),
    ],
)
async def test_permanent_error_is_not_retried(error: Exception) -> None:
    inner, asked = patient(error)
    with pytest.raises(type(error)):
        await asked()
    assert inner.calls == 1


async def test_max_retries_of_zero_disables_retries() -> None:
    inner, asked = patient(failed(), retries=0)
    with pytest.raises(ModelError) as caught:
        await asked()
    assert inner.calls == 1
    assert caught.value.message == "it is server-error"


async def test_unreachable_address_is_not_retried() -> None:
    inner, asked = patient(Unreachable("nobody"))
    with pytest.raises(Unreachable):
        await asked()
    assert inner.calls == 1


async def test_address_that_answered_before_is_retried() -> None:
    inner, asked = patient(failed(), Unreachable("nobody"), Unreachable("nobody"))
    assert (await asked()).summary == "done"
    assert inner.calls == 4
    inner._errors = [Unreachable("nobody") for _ in range(9)]
    with pytest.raises(Unreachable) as caught:
        await asked()
    assert caught.value.message == "nobody (given up after 5 attempts)"


async def test_pauses_grow() -> None:
    _, asked = patient()
    pauses = [asked.retries._pause(failures, None) for failures in range(1, 40)]
    for number, pause in enumerate(pauses):
        longest = min(60.0, 0.001 * 2**number)
        assert 0.75 * longest <= pause <= longest


async def test_every_request_waits_for_retry_after() -> None:
    inner, asked = patient(failed("rate-limited", after=0.3))
    begun = time.monotonic()
    first = asyncio.create_task(asked())
    await asyncio.sleep(0.05)
    await asked()
    assert time.monotonic() - begun >= 0.3
    assert (await first).summary == "done"
    assert inner.calls == 3


async def test_retry_after_of_an_hour_is_not_waited() -> None:
    inner, asked = patient(failed("rate-limited", after=3600))
    with pytest.raises(ModelError) as caught:
        await asyncio.wait_for(asked(), 1)
    assert "3600 s" in caught.value.message
    assert inner.calls == 1
