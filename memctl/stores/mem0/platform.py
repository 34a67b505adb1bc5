"""The facts of a project of the mem0 Platform, through its HTTP API.

The calls are those of the SDK's ``MemoryClient`` (mem0ai 2.2.1, ``mem0/client/main.py``).  The page
limit is from the API's documentation.  The Platform assigns its own ids and times, and computes its
own vectors.  memctl therefore stores the original id, text, times, entities and history of a fact
in the metadata, under the name ``memctl``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from msgspec import structs

from memctl.dialects.fact import build
from memctl.errors import BadData, Lost, MemctlError, Unavailable, UsageError
from memctl.inference.text import encodable
from memctl.json import jsonio
from memctl.location import Location, visible
from memctl.model import MemoryKey, ServiceHit, StoredMessage
from memctl.selection import Selection
from memctl.store import OpenMode, searched_text
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.simple import Rejected
from memctl.stores.mem0.vectors import library

NOTE = "memctl"
"""The metadata field for fact data that the Platform has no field for."""
KEY_VARIABLE = "MEM0_API_KEY"
"""The environment variable of the key, as in mem0's SDK."""
_PAGE = 200
_SOME = 500
_MOST_FOUND = 1000
"""The maximum number of facts that a search requests."""
_FEW = 20
"""The maximum number of users or sessions in a filter; memctl filters a larger selection."""
_TIMEOUT = 60.0
_ATTEMPTS = 6
_LONGEST_WAIT = 60.0
_EVENT_POLLS = 120
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SCOPE = (("user_id", "user"), ("agent_id", "part"), ("run_id", "session"))
_EVERYTHING = {"OR": [{name: "*"} for name in ("user_id", "agent_id", "app_id", "run_id")]}
_OWN = frozenset(
    ["id", "memory", "user_id", "agent_id", "run_id", "metadata", "created_at", "updated_at"]
)
"""The fields of an API memory that a fact holds in fields of its own, not as metadata."""
_DERIVED = frozenset(["hash", "score", "owner", "organization", "name", "input"])
"""The fields of an API memory that are left out of a fact."""
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE fact (
    id TEXT PRIMARY KEY, own TEXT, user TEXT, session TEXT, part TEXT, time TEXT, message BLOB
);
"""
_PUT = "INSERT OR REPLACE INTO fact VALUES (?, ?, ?, ?, ?, ?, ?)"


class PlatformStore(FactStore):
    """The facts of a project of the mem0 Platform: ``mem0://HOST`` and the project's key."""

    kind = "mem0-platform"
    features = structs.replace(FactStore.features, search=True)
    texts_stay = ": the service may keep what is replaced"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._client: Any = None
        self._project = ""
        self._listed = False
        self._spool: sqlite3.Connection | None = None

    async def connect(self, mode: OpenMode) -> None:  # noqa: ARG002 - there is nothing to create
        parts = urlsplit(self.location.url)
        key = unquote(parts.password or "") or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise UsageError(
                f"{self.label}: no key of the mem0 Platform is given",
                f"export {KEY_VARIABLE}, or write password_env, password_file or password_command "
                "for an alias",
            )
        scheme = "http" if parts.hostname in _LOOPBACK else "https"
        host = parts.netloc.rpartition("@")[2]
        httpx = library("httpx", self.label)
        self._client = httpx.AsyncClient(
            base_url=f"{scheme}://{host}",
            headers={"Authorization": f"Token {key}"},
            timeout=_TIMEOUT,
        )
        self._spool = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._spool.executescript(_SCHEMA)
        about = await self._ask("GET", "/v1/ping/")
        names = (host, about.get("org_id"), about.get("project_id"))
        self._project = " ".join(str(name) for name in names if name)

    async def disconnect(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def identity(self) -> str:
        return f"mem0-platform:{self._project}"

    # Reading

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        await self._list()
        assert self._spool is not None
        after = ""
        columns = "id, user, session, part, time"
        sql = f"SELECT {columns} FROM fact WHERE id > ? ORDER BY id LIMIT {_SOME}"
        while rows := self._spool.execute(sql, (after,)).fetchall():
            for id, user, session, part, time in rows:
                key = MemoryKey(user, session, part)
                if where.has_key(key):
                    yield FactEntry(key, id, time)
            after = rows[-1][0]

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:  # noqa: ARG002
        if not self._listed:
            await self._list()
        assert self._spool is not None
        ids = _possible(ids)
        places = ",".join("?" * len(ids))
        sql = f"SELECT id, user, session, part, message FROM fact WHERE id IN ({places})"
        return [
            LoadedFact(MemoryKey(user, session, part), StoredMessage(id, message))
            for id, user, session, part, message in self._spool.execute(sql, ids).fetchall()
        ]

    async def _list(self) -> None:
        """Read all facts of the project into the temporary database, page by page.

        Raises:
            BadData: the answer is not a list of memories.
        """
        assert self._spool is not None
        self._spool.execute("DELETE FROM fact")
        number = 1
        while True:
            page = await self._ask(
                "POST",
                "/v3/memories/",
                {"filters": _EVERYTHING, "show_expired": True},
                {"page": number, "page_size": _PAGE},
            )
            found = page.get("results")
            if not isinstance(found, list):
                raise BadData(
                    f"{self.label}: the answer is not a list of memories",
                    "check that the host is one of the mem0 Platform",
                )
            self._spool.executemany(_PUT, [_row(one) for one in found])
            if not page.get("next") or not found:
                break
            number += 1
        self._listed = True

    # Searching

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:
        """Search as ``Store.search`` does; the Platform omits expired facts and low scores."""
        text = searched_text(self, query, where)
        count = min(top, _MOST_FOUND)
        while True:
            found = await self._search(text, where, count)
            hits = self._hits(found, where)
            # A search has no pages: a larger search starts again at the beginning.
            if len(hits) >= top or len(found) < count or count == _MOST_FOUND:
                return hits[:top]
            count = min(count * 5, _MOST_FOUND)

    async def _search(self, text: str, where: Selection, count: int) -> list[Any]:
        body = {"query": text, "filters": _filters(where), "top_k": count}
        answer = await self._ask("POST", "/v3/memories/search/", body)
        found = answer.get("results")
        if not isinstance(found, list):
            raise BadData(
                f"{self.label}: the answer to a search is not a list of memories",
                "check that the host is one of the mem0 Platform",
            )
        return found

    def _hits(self, found: Sequence[Any], where: Selection) -> list[ServiceHit]:
        hits: dict[str, ServiceHit] = {}
        for memory in found:
            id, _, user, session, part, _, message = _row(memory)
            key, stored = MemoryKey(user, session, part), StoredMessage(id, message)
            if id not in hits and where.has_key(key) and where.matches(stored, self.dialect):
                score = memory.get("score")
                score = float(score) if isinstance(score, int | float) else 0.0
                hits[id] = ServiceHit(key, stored, score)
        return list(hits.values())

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        if not any(key):
            raise Rejected("bad-name", "mem0 needs a user, a run or an agent")
        requests = [_request(key, fact) for fact in facts]
        for fact, request in zip(facts, requests, strict=True):
            _check_text(fact.id, request)
        await self.remove(key, [fact.id for fact in facts])
        assert self._spool is not None
        for request in requests:
            own = await self._send(request)
            fields = {
                **{name: getattr(key, field) for name, field in _SCOPE},
                "id": own,
                "memory": request["messages"][0]["content"],
                "metadata": request["metadata"],
                "expiration_date": request.get("expiration_date"),
            }
            self._spool.execute(_PUT, _row(fields))

    async def _send(self, request: dict[str, Any]) -> str:
        """Send a request that adds a fact; return the Platform's id of the fact, or "" if unknown.

        Raises:
            Rejected: the Platform does not accept the fact.
        """
        answer = await self._ask("POST", "/v3/memories/add/", request, refuses=True)
        event = answer.get("event_id")
        results = answer.get("results")
        if event and not results:
            results = await self._event(str(event))
        if isinstance(results, list) and results and isinstance(results[0], dict):
            return str(results[0].get("id") or "")
        return ""

    async def _event(self, event: str) -> Any:
        """Wait until a queued addition is done; return the results of the addition.

        Raises:
            Rejected: the Platform could not add the fact.
            Lost: the addition is still in the queue after about a minute.
        """
        for _ in range(_EVENT_POLLS):
            found = await self._ask("GET", f"/v1/event/{quote(event, safe='')}/")
            match found.get("status"):
                case "SUCCEEDED":
                    return found.get("results")
                case "FAILED":
                    raise Rejected("refused", "the mem0 Platform could not add it")
            await asyncio.sleep(0.5)
        raise Lost(
            f"{self.label}: what was added is still in its queue", "run the same command again"
        )

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:  # noqa: ARG002
        if not self._listed:
            await self._list()
        assert self._spool is not None
        ids = _possible(ids)
        places = ",".join("?" * len(ids))
        sql = f"SELECT id, own FROM fact WHERE id IN ({places})"
        rows = self._spool.execute(sql, ids).fetchall()
        if not all(own for _, own in rows):  # ``put`` did not receive the Platform's ids
            await self._list()
            rows = self._spool.execute(sql, ids).fetchall()
        for id, own in rows:
            await self._ask("DELETE", f"/v1/memories/{quote(own, safe='')}/", gone=True)
            self._spool.execute("DELETE FROM fact WHERE id = ?", (id,))

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        *,
        gone: bool = False,
        refuses: bool = False,
    ) -> dict[str, Any]:
        """Send a request; return the JSON object of the answer, or {} for an empty answer.

        Network errors and rate limits are retried.  With ``gone``, status 404 gives {}.  With
        ``refuses``, a rejected request raises ``Rejected``, and network errors are not retried.
        """
        httpx = library("httpx", self.label)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = await self._client.request(method, path, json=body, params=query)
            except httpx.HTTPError as error:
                # The Platform may have added the text: a retry could add a duplicate.
                if attempt == _ATTEMPTS or refuses:
                    reason = visible(str(error)) or type(error).__name__
                    hint = "check the host and the network"
                    raise Lost(f"{self.label}: {reason}", hint) from error
                await asyncio.sleep(0.5 * attempt)
                continue
            status = response.status_code
            if status == 429 and attempt < _ATTEMPTS:
                await asyncio.sleep(_pause(response.headers.get("Retry-After"), attempt))
                continue
            if status < 300:
                return self._object(response)
            if status == 404 and gone:
                return {}
            raise self._refusal(status, response, refuses=refuses)
        raise AssertionError

    def _object(self, response: Any) -> dict[str, Any]:
        if not response.content:
            return {}
        try:
            value = jsonio.loads(response.content)
        except ValueError:
            value = None
        if isinstance(value, list):  # the format of older servers
            return {"results": value}
        if not isinstance(value, dict):
            raise BadData(
                f"{self.label}: the answer is not JSON",
                "check that the host is one of the mem0 Platform",
            )
        return value

    def _refusal(self, status: int, response: Any, *, refuses: bool) -> MemctlError | Rejected:
        detail = ""
        with suppress(ValueError, AttributeError):
            detail = str(jsonio.loads(response.content).get("detail") or "")
        text = f"{self.label}: {visible(detail) or f'HTTP status {status}'}"
        match status:
            case 401 | 403:
                return Unavailable(text, f"check the key: {KEY_VARIABLE}, or that of the alias")
            case 404:
                return Unavailable(text, "check that the host is one of the mem0 Platform")
            case 429:
                return Lost(text, "the rate limit is reached: run the same command again later")
            case _ if status >= 500:
                return Lost(text, "the Platform has a problem: run the same command again later")
        if refuses:
            return Rejected("refused", visible(detail) or f"HTTP status {status}")
        return Unavailable(text, "see the documentation of the mem0 Platform")


def _filters(where: Selection) -> dict[str, Any]:
    """Return the API filters for the selected users and sessions, if few."""
    keys = where.keys or frozenset()
    several = (
        ("user_id", where.users or {key.user for key in keys}),
        ("run_id", where.sessions or {key.session for key in keys}),
    )
    parts: list[dict[str, Any]] = [
        {"OR": [{name: value} for value in sorted(map(encodable, values))]}
        for name, values in several
        # "*" is a wildcard.  The API documents no filter for memories without a user or a run.
        if 0 < len(values) <= _FEW and values.isdisjoint(("", "*"))
    ]
    return {"AND": parts} if parts else _EVERYTHING


def _row(memory: Any) -> tuple[Any, ...]:
    memory = memory if isinstance(memory, dict) else {}
    metadata = dict(memory.get("metadata") or {})
    note = _note(metadata.pop(NOTE, None))
    own = str(memory.get("id") or "")
    id = note.get("id") or own
    key = MemoryKey(*(_text(memory.get(name)) for name in ("user_id", "run_id", "agent_id")))
    fields: dict[str, Any] = {"id": id, "text": memory.get("memory")}
    created, updated = memory.get("created_at"), memory.get("updated_at")
    if note:
        fields |= {name: note[name] for name in ("created_at", "updated_at") if name in note}
        if note.get("text", fields["text"]) != fields["text"] and updated:
            fields["updated_at"] = updated
        if memory.get("expiration_date"):
            metadata["expiration_date"] = memory["expiration_date"]
    else:
        fields |= {"created_at": created, "updated_at": updated}
        metadata |= {
            name: value
            for name, value in memory.items()
            if name not in _OWN | _DERIVED and value not in (None, [], {})
        }
    fields["metadata"] = metadata or None
    fields["entities"] = note.get("entities")
    fields["history"] = note.get("history")
    time = _text(fields.get("updated_at")) or _text(fields.get("created_at"))
    return (id, own, *key, time, build(fields))


def _note(text: Any) -> dict[str, Any]:
    if isinstance(text, str):
        with suppress(ValueError):
            value = jsonio.loads(text.encode())
            if isinstance(value, dict) and isinstance(value.get("id"), str):
                return value
    return {}


def _request(key: MemoryKey, fact: StoredMessage) -> dict[str, Any]:
    """Return the API request that adds a fact with its text unchanged.

    Raises:
        Rejected: the fact has no text.
    """
    fields = jsonio.loads(fact.message)
    text = fields.get("text")
    if not isinstance(text, str) or not text:
        raise Rejected("refused", f"{fact.id!r}: the mem0 Platform takes texts alone")
    metadata = dict(fields.get("metadata") or {})
    expires = metadata.pop("expiration_date", None)
    note = {
        name: fields[name]
        for name in ("id", "text", "created_at", "updated_at", "entities", "history")
        if name in fields
    }
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "infer": False,
        "async_mode": False,
        "metadata": metadata | {NOTE: jsonio.dumps(note).decode()},
        **{name: value for name, field in _SCOPE if (value := getattr(key, field))},
    }
    if isinstance(expires, str):
        request["expiration_date"] = expires
    elif expires is not None:
        metadata["expiration_date"] = expires
    return request


def _possible(ids: Sequence[str]) -> list[str]:
    return [id for id in ids if encodable(id) == id]


def _check_text(id: str, request: dict[str, Any]) -> None:
    """Check that a request can be sent as UTF-8.

    Raises:
        Rejected: the id or the request contains a lone surrogate.
    """
    try:
        json.dumps([id, request], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Rejected("refused", f"{id!r} has half of a surrogate pair") from None


def _pause(after: str | None, attempt: int) -> float:
    """Return the seconds to wait; ``after`` is the ``Retry-After`` header."""
    try:
        return min(float(after or ""), _LONGEST_WAIT)
    except ValueError:
        return min(2.0**attempt / 2, _LONGEST_WAIT)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
