"""The registry of dialects, by name.  The module of a dialect is loaded when it is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from memctl.dialects.view import Dialect

_MODULES = {
    "agentscope1": "agentscope1",
    "agentscope2": "agentscope2",
    "runtime": "runtime",
    "fact": "fact",
    "role-content": "rows",
    "langchain": "langchain",
    "langchain-js": "langchain",
    "openai-agents": "openai_agents",
    "llamaindex": "llamaindex",
    "adk": "adk",
    "agno": "agno",
    "openai": "openai",
}
"""The module of each dialect.  A constant in the module has the name of the dialect."""


class _Registry(Mapping[str, Dialect]):
    def __getitem__(self, name: str) -> Dialect:
        module = import_module(f"memctl.dialects.{_MODULES[name]}")
        dialect: Dialect = getattr(module, name.upper().replace("-", "_"))
        return dialect

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


DIALECTS: Mapping[str, Dialect] = _Registry()
