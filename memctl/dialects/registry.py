"""The dialects that memctl knows, by name."""

from __future__ import annotations

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.fact import FACT
from memctl.dialects.runtime import RUNTIME
from memctl.dialects.view import Dialect

DIALECTS: dict[str, Dialect] = {one.name: one for one in (AGENTSCOPE1, AGENTSCOPE2, RUNTIME, FACT)}
