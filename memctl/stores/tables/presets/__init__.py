"""The tables of frameworks.  To add a framework, add a module and an entry of ``PRESETS``."""

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
