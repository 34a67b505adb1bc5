"""OpenAI Agents SDK: the sessions of ``RedisSession``."""

from __future__ import annotations

import time

from memctl.dialects.openai_agents import OpenAIAgents
from memctl.engines.redis.pipeline import Command, Pipeline
from memctl.engines.redis.text import encode
from memctl.layouts.redis.lists import ListStore
from memctl.layouts.redis.whole import Held, MemoryPlace
from memctl.location import Location
from memctl.store import OpenMode


class OpenAIAgentsListStore(ListStore):
    """The sessions of the OpenAI Agents SDK's ``RedisSession``.

    Each session is a Redis list of messages, with a hash and a counter.
    """

    kind = "redis-openai-agents"
    lock_name = "openai-agents"
    dialect = rows = OpenAIAgents()
    start = "agents:session"
    end = b":messages"
    spaces = False

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._start += b":"

    def _keys(self, place: MemoryPlace) -> list[bytes]:
        session = place.key.removesuffix(self.end)
        return [place.key, session, session + b":counter"]

    def moving(
        self, pipeline: Pipeline, place: MemoryPlace, target: MemoryPlace, held: Held
    ) -> list[Command]:
        commands = super().moving(pipeline, place, target, held)
        session = target.key.removesuffix(self.end)
        named = (b"HSET", session, b"session_id", encode(target.memory.session))
        return [*commands, *([named] if any(one[2] == session for one in commands) else [])]

    def _naming(self, place: MemoryPlace) -> list[Command]:
        session, now = place.key.removesuffix(self.end), b"%d" % int(time.time())
        name = encode(place.memory.session)
        return [
            (b"HSET", session, b"session_id", name, b"updated_at", now),
            (b"HSETNX", session, b"created_at", now),
        ]
