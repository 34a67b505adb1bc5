"""Offloaded contents without the values: made anew under the name of their new digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256

from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.ops.names import list_names
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.prune import Referrers, referred
from memctl.ops.offload.slim import Blob
from memctl.ops.redact.redactor import Redactor
from memctl.ops.redact.rules import Rules
from memctl.selection import EVERYTHING, Selection
from memctl.store import Store
from memctl.storekit.binary import rewrite_bytes
from memctl.storekit.texts import Hit, Rewritten, TextResult


class _Renamer(Redactor):
    """Replaces the names of blobs."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__(Rules([], list(names)))
        self._names = names

    def replacement(self, hit: Hit) -> str:
        return self._names[hit.value]


class RenewedBlobs:
    """The blobs to which messages of redacted stores refer."""

    def __init__(self, blobs: Blobs, redactor: Redactor) -> None:
        self._blobs = blobs
        self._redactor = redactor
        self._new: dict[str, str] = {}
        """The name of each blob that was made anew, by the old name."""

    async def find(self, store: Store, where: Selection = EVERYTHING) -> list[TextResult]:
        """Return what the rules find in the blobs to which selected messages of a store refer.

        Raises:
            MemctlError: as ``Store.read``; or the place of the blobs cannot be read.
        """
        return [result for result, _ in await self._found(store, where)]

    async def renew(self, store: Store) -> list[TextResult]:
        """Make the blobs of a store anew, and let its messages refer to them.

        Raises:
            MemctlError: as ``Store.rewrite_texts``; or the place of the blobs refuses a blob.
        """
        found = await self._found(store, EVERYTHING)
        users = {key.user for key in await list_names(store, Selection())} if found else set()
        for result, name in found:
            if result.hits:
                await in_thread(partial(self._renew, name, users))
        if self._new:
            async with aclosing(store.rewrite_texts(_Renamer(self._new), writes=True)) as renamed:
                async for _ in renamed:
                    continue
        return [result for result, _ in found]

    async def _found(self, store: Store, where: Selection) -> list[tuple[TextResult, str]]:
        """Return what is in each blob of a store that was not made anew, with its name."""
        named = await referred(store, where)
        if not named:
            return []
        sizes = await in_thread(self._blobs.sizes)
        names = sorted((sizes.keys() & named) - self._new.keys())
        found = [(await in_thread(partial(self._rewritten, name)), name) for name in names]
        return [
            (one.at(f"offloaded content {name[:12]}"), name)
            for one, name in found
            if one.hits or one.left
        ]

    def _rewritten(self, name: str) -> Rewritten:
        return rewrite_bytes(b"".join(self._blobs.content(name)), self._redactor)

    def _renew(self, name: str, users: set[str]) -> None:
        new = self._rewritten(name).text
        _, _, extension = name.partition(".")
        again = f"{sha256(new).hexdigest()}.{extension}"

        def pieces() -> Iterator[bytes]:
            yield new

        for user in sorted(users):
            if self._blobs.has(name, user):
                self._blobs.put(Blob(again, len(new), pieces), user)
        self._new[name] = again

    async def remove_old(self, places: Sequence[Location], referrers: Referrers) -> None:
        """Remove the old blobs, except for those that other stores need.

        Raises:
            MemctlError: as ``Referrers.remove_unreferred``.
        """
        if self._new:
            await referrers.remove_unreferred(places, self._blobs, dict.fromkeys(self._new, 0), {})
