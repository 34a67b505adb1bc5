"""The registry of dialects, by their ``full_name``.

The module of a dialect is loaded when it is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module

from memctl.dialects.view import Dialect
from memctl.text.values import time_zone

_MODULES = {
    "agentscope1": "agentscope1",
    "agentscope2": "agentscope2",
    "agentscope-java": "agentscope_java",
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
    "claude-code": "claude_code",
    "codex": "codex",
    "hermes": "hermes",
    "opencode": "opencode",
}
"""The module of each dialect.  A constant in the module has the name of the dialect."""


ALL = "?all"
"""The end of the name of a dialect with ``all_messages``."""


class _Registry(Mapping[str, Dialect]):
    def __getitem__(self, name: str) -> Dialect:
        if name.endswith(ALL):
            return self[name.removesuffix(ALL)].with_all_messages()
        named, *flags = re.split(r"\?(live|summary)=", name)
        plain, _, zone = named.partition("@")
        module = import_module(f"memctl.dialects.{_MODULES[plain]}")
        dialect: Dialect = getattr(module, plain.upper().replace("-", "_"))
        if flags:
            from memctl.dialects.rows import Flag, RowDialect

            for what, condition in zip(flags[::2], flags[1::2], strict=True):
                flag = Flag.parse(condition)
                if flag is None or not isinstance(dialect, RowDialect):
                    raise KeyError(name)
                dialect = dialect.flagged(flag) if what == "live" else dialect.summed(flag)
            return dialect
        return dialect.in_zone(time_zone(zone)) if zone else dialect

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and re.split("[@?]", name)[0] in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


DIALECTS: Mapping[str, Dialect] = _Registry()
