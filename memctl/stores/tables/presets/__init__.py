"""The tables of frameworks, a module each; a new framework is a module here, and a line below."""

from __future__ import annotations

from memctl.stores.tables.mapping import Mapping
from memctl.stores.tables.presets import adk, langchain, llamaindex, openai_agents

PRESETS: dict[str, Mapping] = {
    "langchain": langchain.PRESET,
    "openai-agents": openai_agents.PRESET,
    "llamaindex": llamaindex.PRESET,
    "adk": adk.PRESET,
}
"""The tables of frameworks, by ``?layout=``."""
