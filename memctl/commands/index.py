"""``memctl index``: lists, updates and removes the indexes of searches."""

from __future__ import annotations

from typing import Annotated

from rich.text import Text

from memctl import api
from memctl.commands._context import Run
from memctl.commands._options import EmbedderOption, group, opens_stores, takes_options
from memctl.commands._parameters import argument, option
from memctl.commands._run import named_embedder, wait_for
from memctl.errors import NotFound, UsageError
from memctl.index import folder
from memctl.index.folder import IndexInfo
from memctl.location import Location
from memctl.output.printout import Printout
from memctl.output.tables import Column, Grid, cell
from memctl.reports.index import (
    IndexRemoveReport,
    IndexReport,
    IndexRow,
    IndexUpdateReport,
    UpdatedRow,
)
from memctl.storekit.single_file import file_identity
from memctl.text.numbers import count, size

app = group()

StoresArgument = Annotated[list[str], argument("STORE", "URLs, paths or aliases.")]


@app.callback()
def index() -> None:
    """List, update or remove the indexes of searches.

    A search makes and updates the index of its store itself. The indexes are in the cache folder.

    Examples:
      memctl index list
      memctl index update agents.db --embedder local
      memctl index remove agents.db
    """


@app.command("list")
@takes_options
def list_(run: Run) -> None:
    """List the indexes.

    Examples:
      memctl index list
      memctl index list --json
    """
    found = folder.indexes()
    run.output.printout = Printout(
        lambda: IndexReport(_rows(found)),
        lambda: _table(found) if found else Text("There are no indexes.", "dim"),
    )
    run.output.finish()


@app.command()
@opens_stores
def update(
    run: Run,
    stores: StoresArgument,
    checksum: Annotated[
        bool, option("--checksum", "Compare texts, too: read all messages.")
    ] = False,
    embedder: EmbedderOption = None,
) -> None:
    """Bring indexes up to date, so that the next search is quick.

    Examples:
      memctl index update agents.db
      memctl index update agents.db --embedder local
    """
    places = [_kept(run, store) for store in stores]
    model = named_embedder(run, embedder)
    rows = []
    for place in places:
        use = wait_for(
            api.update_index(place, embedder=model, checksum=checksum, observer=run.output)
        )
        for text in use.warnings:
            run.output.warn(text)
        rows.append(UpdatedRow(place.label, use.messages, use.new, round(use.seconds, 3)))
    run.output.printout = Printout(
        lambda: IndexUpdateReport(rows), lambda: _lines(rows), of_run=True
    )
    run.output.finish()


@app.command()
@takes_options
def remove(
    run: Run,
    stores: Annotated[list[str] | None, argument("STORE", "URLs, paths or aliases.")] = None,
    everything: Annotated[bool, option("--all", "Remove all indexes.")] = False,
) -> None:
    """Remove indexes; the next search of a store makes a new one.

    Examples:
      memctl index remove agents.db
      memctl index remove --all
    """
    if everything == bool(stores):
        raise UsageError("name the stores, or all of them", "memctl index remove STORE or --all")
    known = folder.indexes()
    wanted = known if everything else []
    for place in map(run.locate, stores or ()):
        found = [info for info in known if _is_of(info, place)]
        if not found:
            raise NotFound(
                f"there is no index of {place.label}", "list the indexes with: memctl index list"
            )
        wanted += [info for info in found if info not in wanted]
    for info in wanted:
        folder.remove(info)
    run.output.printout = Printout(
        lambda: IndexRemoveReport(_rows(wanted)),
        lambda: Text(f"Removed {count(len(wanted), 'index')}."),
        of_run=True,
    )
    run.output.finish()


def _is_of(info: IndexInfo, place: Location) -> bool:
    """Return whether an index belongs to the store at ``place``."""
    identity = file_identity(place)
    same = identity is not None and info.identity == folder.digest(identity)
    return same or info.label == place.label


def _kept(run: Run, store: str) -> Location:
    place = run.locate(store)
    if place.kind == "stdio":
        raise UsageError("stdin has no index", "name a file or a URL")
    return place


def _rows(infos: list[IndexInfo]) -> list[IndexRow]:
    return [
        IndexRow(
            *(info.label, info.kind, info.memories, info.messages, info.bytes),
            info.updated.astimezone().isoformat(timespec="seconds"),
            info.model or None,
            str(info.path),
        )
        for info in infos
    ]


def _table(infos: list[IndexInfo]) -> Grid:
    return Grid(
        [
            Column("store", [cell(info.label or "(damaged)") for info in infos], shrinks=True),
            Column("messages", [Text(f"{info.messages:,}") for info in infos], right=True),
            Column("size", [Text(size(info.bytes)) for info in infos], right=True),
            Column("updated", [Text(f"{info.updated:%Y-%m-%d %H:%M}") for info in infos], leaves=2),
            Column("model", [Text(info.model) for info in infos], leaves=1),
        ]
    )


def _lines(rows: list[UpdatedRow]) -> Text:
    lines = [f"{row.store}: {count(row.messages, 'message')}, {row.new:,} new" for row in rows]
    return Text("\n".join(lines))
