"""So many requests to a model by the official SDK, some at once, and nothing else.

python sdk.py URL REQUESTS JOBS
"""

from __future__ import annotations

import asyncio
import sys

import openai

PROMPT = "We looked at hotels near the river, and the one with a garden has rooms in May. " * 90


async def main(url: str, requests: int, jobs: int) -> None:
    left = iter(range(requests))
    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:

        async def job() -> None:
            for _ in left:
                messages = [{"role": "user", "content": PROMPT}]
                body = {"model": "m", "messages": messages}
                await client.post("/chat/completions", cast_to=object, body=body)

        await asyncio.gather(*(job() for _ in range(jobs)))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
