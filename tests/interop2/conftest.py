"""The real AgentScope 2.x for all tests of a process, and 1.x beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.conftest import agentscope
from tests.summarizers.server import ModelServer, Reply, Request
from tests.support.agentscope2 import AgentScope2
from tests.support.worker import for_the_session

__all__ = ["agentscope"]


agentscope2 = for_the_session(AgentScope2)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model on loopback with one answer to some prompts, which it keeps."""
    with ModelServer(*[_says] * 10) as server:
        yield server


def _says(request: Request) -> Reply:
    message = {"role": "assistant", "content": "So be it."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    about = {"id": "1", "object": "chat.completion", "created": 1790000000, "choices": [choice]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return Reply({**about, "model": request.body["model"], "usage": usage})
