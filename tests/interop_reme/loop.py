"""The loop of the workers: a request on each line of stdin, its answer on a line of stdout.

A request is JSON and says what to ``do``; an answer is ``{"answer": ...}`` or ``{"error": "..."}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Work = Callable[[dict[str, Any]], Awaitable[Any]]


def serve(do: Mapping[str, Work]) -> None:
    """Answer requests until stdin ends; whatever the library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            given: dict[str, Any] = {"answer": asyncio.run(_run(do[request["do"]], request))}
        except Exception as error:  # noqa: BLE001 - the test shows whatever the library raised
            traceback.print_exc()
            given = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(given), file=answers, flush=True)


async def _run(work: Work, request: dict[str, Any]) -> Any:
    return await work(request)
