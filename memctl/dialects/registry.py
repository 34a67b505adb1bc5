"""The registry of dialects, by name."""

from __future__ import annotations

from memctl.dialects.adk import ADK
from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.agno import AGNO
from memctl.dialects.fact import FACT
from memctl.dialects.langchain import LANGCHAIN, LANGCHAIN_JS
from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.dialects.openai import OPENAI
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.rows import ROLE_CONTENT
from memctl.dialects.runtime import RUNTIME
from memctl.dialects.view import Dialect

DIALECTS: dict[str, Dialect] = {
    one.name: one
    for one in (
        *(AGENTSCOPE1, AGENTSCOPE2, RUNTIME, FACT),
        *(ROLE_CONTENT, LANGCHAIN, LANGCHAIN_JS, OPENAI_AGENTS, LLAMAINDEX, ADK, AGNO, OPENAI),
    )
}
