"""The parts of a configuration of mem0's library (``Memory.from_config``) that locate facts.

Names and defaults are from mem0ai 2.2.1, ``mem0/configs``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memctl.errors import BadData, UsageError
from memctl.json import jsonio
from memctl.location import visible
from memctl.machine import system
from memctl.model import Embedding
from memctl.storekit.files import system_errors

PROVIDERS = ("qdrant", "faiss", "chroma", "pgvector")
"""The vector stores that memctl supports."""
_DIMENSIONS = 1536
"""mem0's default for its vector stores and for OpenAI's embedder."""
_MOST_DIMENSIONS = 2**31 - 1
_OPENAI_MODEL = "text-embedding-3-small"
_SECTION = '"vector_store": {"provider": "qdrant", "config": {"path": "..."}}'


@dataclass(frozen=True, slots=True)
class Mem0Config:
    """The settings of mem0 that locate facts and their history.

    ``path`` is the configuration file, ``history`` the history file.  ``options`` are the options
    of the vector store.  A password in the options never appears in an error.
    """

    path: Path
    provider: str
    options: Mapping[str, Any] = field(repr=False)
    embedding: Embedding
    """The configured embedding model; 0 dimensions if their number is unknown."""
    history: Path

    @property
    def collection(self) -> str:
        """The name of the collection of facts."""
        return self.text("collection_name", "mem0")

    @property
    def entities(self) -> str:
        """The name of the collection of entities (mem0's ``_entity_collection_name``)."""
        return f"{self.collection}_entities"

    @property
    def folder(self) -> Path:
        """The folder of a local vector store; relative paths start at the working folder."""
        return Path(self.text("path", f"/tmp/{self.provider}"))

    def text(self, name: str, default: str = "") -> str:
        """Return an option of the vector store as a text; ``default`` if it is missing or empty.

        Raises:
            UsageError: the value is not a text, or contains a null character or a lone surrogate.
        """
        value = self.options.get(name)
        if value is None or value == "":
            return default
        if not isinstance(value, str):
            raise UsageError(
                f"{visible(str(self.path))}: vector_store.config.{name} is not a text",
                "write it in quotes",
            )
        _refuse_odd(self.path, f"vector_store.config.{name}", value)
        return value


def _refuse_odd(path: Path, name: str, value: str) -> None:
    """Check that the value of an option can name a file, a server or a collection.

    ``path`` is the configuration file, ``name`` the option.

    Raises:
        UsageError: the value contains a null character or a lone surrogate.
    """
    if "\0" in value or jsonio.has_surrogate(value):
        raise UsageError(
            f"{visible(str(path))}: {name} has a null character or half of a surrogate pair",
            "correct it: no file and no server has such a name",
        )


def read(path: Path) -> Mem0Config:
    """Return the settings in a JSON file with the dict for mem0's ``Memory.from_config``.

    Raises:
        NotFound, Unavailable: the file cannot be read.
        BadData: the file is not valid JSON.
        UsageError: the file names no vector store that memctl supports, or an option is not valid.
    """
    name = visible(str(path))
    with system_errors(path, "read"):
        content = system.read_file(path)
    try:
        value = jsonio.loads(content)
    except ValueError as error:
        raise BadData(
            f"{name} is not a configuration of mem0: {error}",
            "it is the JSON of the dict that Memory.from_config takes",
        ) from error
    store = value.get("vector_store") if isinstance(value, dict) else None
    if not isinstance(store, dict) or not isinstance(store.get("provider"), str):
        raise UsageError(
            f"{name} names no vector store, so memctl cannot find the facts",
            f"a configuration of mem0 has {_SECTION}",
        )
    provider = store["provider"]
    if provider not in PROVIDERS:
        raise UsageError(
            f"{name}: memctl does not open the vector store {visible(provider)!r} of mem0",
            f"it opens {', '.join(PROVIDERS)}",
        )
    options = store.get("config") or {}
    if not isinstance(options, dict):
        raise UsageError(f"{name}: vector_store.config is not an object", f"write {_SECTION}")
    history = _history(value)
    _refuse_odd(path, "history_db_path", str(history))
    return Mem0Config(path, provider, options, _embedding(name, value, options), history)


def _embedding(name: str, value: dict[str, Any], options: dict[str, Any]) -> Embedding:
    embedder = value.get("embedder")
    embedder = embedder if isinstance(embedder, dict) else {}
    about = embedder.get("config")
    about = about if isinstance(about, dict) else {}
    openai = embedder.get("provider", "openai") == "openai"
    model = about.get("model") or (_OPENAI_MODEL if openai else "")
    default = about.get("embedding_dims") or (_DIMENSIONS if openai else 0)
    if value["vector_store"]["provider"] == "chroma":  # it is not told, but takes what comes
        size = default
    else:
        size = options.get("embedding_model_dims") or _DIMENSIONS
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MOST_DIMENSIONS:
        raise UsageError(f"{name}: the dimensions of the vectors are not a number", "such as 1536")
    return Embedding(model if isinstance(model, str) else "", size)


def _history(value: dict[str, Any]) -> Path:
    given = value.get("history_db_path")
    if isinstance(given, str) and given:
        return Path(given)
    folder = os.environ.get("MEM0_DIR")
    return (Path(folder) if folder else Path.home() / ".mem0") / "history.db"
