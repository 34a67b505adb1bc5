"""A program with agents of the frameworks themselves, for tests of what they send to a model.

Runs in the environments ``.interop-frameworks`` and ``.interop-langgraph``, which know nothing of
memctl.  Each line of stdin is a request, each line of stdout its answer, both JSON: ``{"do":
"write" | "ask", "framework": ..., "path": ..., "session": ..., "model": URL}``, answered by
``{"answer": ...}`` or ``{"error": "..."}``.

``write`` has an agent talk with a user, as the name of the session says.  ``ask`` has the user ask
``And now?``, and answers what the model class was given, if the agent sends nothing over HTTP.  The
agents are in ``talks``, a module for each framework.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any


async def answer(request: Any) -> Any:
    talk = import_module(f"talks.{request['framework']}")
    return await getattr(talk, request["do"])(request["path"], request["session"], request["model"])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print, too
    for line in sys.stdin:
        try:
            found = {"answer": asyncio.run(answer(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the test is told
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
