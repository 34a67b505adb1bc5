"""The real ReMe of each version, and AgenticMemory, for all tests of a process."""

from __future__ import annotations

from tests.support.reme import AgenticMemory, Reme2, Reme3, Reme4
from tests.support.worker import for_the_session

reme2 = for_the_session(Reme2)
reme3 = for_the_session(Reme3)
reme4 = for_the_session(Reme4)
agentic = for_the_session(AgenticMemory)
