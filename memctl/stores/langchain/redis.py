"""LangChain: the histories of ``RedisChatMessageHistory``."""

from __future__ import annotations

from memctl.dialects.langchain import LANGCHAIN
from memctl.layouts.redis.lists import ListStore


class LangChainListStore(ListStore):
    """The histories of LangChain's ``RedisChatMessageHistory``, each a Redis list."""

    kind = "redis-langchain"
    lock_name = "langchain"
    dialect = rows = LANGCHAIN
    start = "message_store:"
    newest_first = True
