"""``memctl verify --receipt``: has anything come back of what was erased?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._run import is_on, wait_for
from memctl.errors import Different, NotFound, Partial, Unavailable
from memctl.journal.erase import RunEraser
from memctl.journal.runs import Runs
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.numbers import count
from memctl.ops.names import list_names
from memctl.ops.observer import opened
from memctl.ops.receipt import Receipt, read_receipt
from memctl.ops.retry import leaving_damaged
from memctl.ops.subject import readings
from memctl.output.report import Report
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Store

Rows = list[dict[str, Any]]


def verify_receipt(run: Run, path: Path, stores: Iterable[str]) -> None:
    """Look for what a receipt says was erased, in these stores or in its own.

    Raises:
        Different: some of it is there.
        Partial: nothing is found, but an undo run could not be searched.
        MemctlError: a store cannot be read; or it is not a receipt.
    """
    output, receipt = run.output, read_receipt(path)
    named = list(stores) or [one.argument for one in receipt.stores]
    found: Rows = []
    unsearched: list[str] = []
    labels: list[str] = []
    for name in named:
        location = run.locate(name)
        labels.append(location.label)
        try:
            found += wait_for(_look(run, name, location, receipt, unsearched))
        except NotFound as error:  # nothing can be in it
            output.note(error.message)
        except Unavailable as error:
            if not stores:
                error.hint = "name the store with its password: memctl verify --receipt FILE STORE"
            raise
    output.report = Report(
        "verify",
        lambda: {"receipt": str(path), "stores": labels, "differences": found},
        lambda: found,
        lambda: _table(path, labels, found),
        of_run=True,
    )
    if found:
        raise Different(
            f"found {count(len(found), 'trace')} of the erased data", "run memctl erase again"
        )
    if unsearched:
        raise Partial(
            f"{count(len(unsearched), 'undo run')} could not be searched; {unsearched[0]}",
            "memctl erase lists them; remove those that you no longer need",
        )
    output.finish()


async def _look(
    run: Run, name: str, location: Location, receipt: Receipt, unsearched: list[str]
) -> Rows:
    """Return what is found in a store and in the runs on it; note the runs without an answer."""
    async with opened(make_store(location), run.output) as store:
        concerns = _concerns(store.kind, location, receipt)
        keys = await leaving_damaged(partial(list_names, store, Selection()))
        rows = [_row(location, key, "name", "it exists") for key in keys if concerns(key)]
        if len(receipt.digests):
            rows += await leaving_damaged(partial(_messages, store, location, receipt, concerns))
    runs = [one for one in Runs().all() if is_on(run, one, name)]
    erased = await RunEraser(Runs(), concerns).erase(runs, dry_run=True)
    unsearched += [why for why in erased.failures.values() if why not in unsearched]
    for held in (*erased.removed, *erased.rewritten):
        rows.append(_row(location, MemoryKey("", ""), "undo-run", f"the undo run {held} holds it"))
    return rows


def _concerns(kind: str, location: Location, receipt: Receipt) -> Callable[[MemoryKey], bool]:
    """Return whether a name is that of the receipt; a file of a state does not say whose it is."""
    if kind == "state" and any(one.store == location.label for one in receipt.stores):
        return lambda _: True
    return lambda key: any(map(receipt.names, readings(kind, key)))


async def _messages(
    store: Store, location: Location, receipt: Receipt, concerns: Callable[[MemoryKey], bool]
) -> Rows:
    """Return a row for each memory under another name that has some of the messages."""
    rows: Rows = []
    ids: list[str] = []
    async with aclosing(store.outline(Selection())) as pages:
        async for page in pages:
            ids += [one.id for one in page.messages if receipt.digests.has(one.id)]
            key = page.memory.key
            if page.last:
                if ids and not concerns(key):
                    text = f"{count(len(ids), 'message')} of the erased data"
                    rows.append(_row(location, key, "message", text, ids[0]))
                ids = []
    return rows


def _row(location: Location, key: MemoryKey, code: str, text: str, id: str = "") -> dict[str, Any]:
    names = {"user": key.user, "session": key.session}
    return {"store": location.label, **names, "code": code, "id": id, "message": text}


def _table(path: Path, labels: list[str], found: Rows) -> Text:
    text = Text()
    for label in labels:
        rows = [row for row in found if row["store"] == label]
        text.append(f"{visible(label)}: ", "bold")
        text.append("nothing found\n" if not rows else f"{count(len(rows), 'trace')}\n", "not bold")
        for row in rows:
            key = MemoryKey(row["user"], row["session"])
            who = "" if row["code"] == "undo-run" else f"{visible(str(key))}: "
            text.append(f"  {who}{visible(row['message'])}\n", "not bold red")
    text.append(f"receipt: {visible(str(path))}", "dim")
    return text
