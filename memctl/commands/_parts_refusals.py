"""The refusals of a run in parts, before a part starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import typer
from msgspec.structs import asdict

from memctl.commands._context import Run
from memctl.errors import UsageError
from memctl.location import Location, redact_value, visible
from memctl.model import OnConflict
from memctl.ops.export.destination import (
    FOLDERS,
    Shape,
    is_folder,
    output_of,
    refuse_options,
    refuse_taken,
    shape_of,
)
from memctl.ops.names import refuse_absent
from memctl.reports.report import Row
from memctl.selection import Selection
from memctl.shard import Shard


class Divided(NamedTuple):
    """A command that can run in parts."""

    doing: str
    """The verb of the progress, such as ``deleting``."""
    stores: tuple[str, ...]
    """The parameters that name stores."""
    written: str = ""
    """The parameter that names the store that is written; empty if none is."""


def refuse_undivisible(
    context: typer.Context,
    divided: Divided,
    locations: Mapping[str, list[Location]],
    shards: int,
) -> None:
    """Refuse what cannot run in parts.

    Raises:
        UsageError: always in such a case.
    """
    given = context.params
    for option in ("follow", "rotate", "messages", "receipt"):
        if given.get(option):
            raise UsageError(
                f"--{option} cannot be combined with --shards", "leave one of them out"
            )
    if given.get("more"):
        raise UsageError("--shards divides one store", "leave the other stores out")
    for place in chain(*locations.values()):
        if place.kind == "stdio":
            raise UsageError("--shards needs named stores, not -", "name a file or a URL")
    if given.get("output") == "-":
        raise UsageError(
            "--shards cannot write to stdout",
            "name a file for each part: -o NAME-{shard}.ndjson.zst",
        )
    written = locations.get(divided.written, ())
    for place in filter(_is_one_file, written if shards > len(written) else ()):
        raise UsageError(
            f"{place.label} is one file, which has one writer: --shards cannot be used",
            "leave --shards out" if len(written) == 1 else f"write --shards {len(written)}",
        )
    if given.get("on_conflict") is OnConflict.REPLACE and not (given["yes"] or given["dry_run"]):
        raise UsageError(
            "--shards cannot ask before each replacement",
            "add --yes; --dry-run shows what would be replaced",
        )


def _is_one_file(place: Location) -> bool:
    """Return whether a store is one file, or would be created as one."""
    path = place.path
    if place.kind.startswith("sqlite") or place.kind == "archive":
        return True
    return path != Path() and (path.is_file() or bool(path.suffix and not path.exists()))


def refuse_outputs(given: dict[str, Any], where: Selection, shards: Iterable[Shard]) -> None:
    """Refuse the outputs of an export that one of the parts would refuse.

    Raises:
        UsageError: always in such a case.
    """
    for shard in shards:
        shape = given["shape"]
        output = output_of(given["output"], shape, shard)
        shape = shape or shape_of(output) or Shape.ARCHIVE
        refuse_options(
            *(output, shape, replace(where, shard=shard)),
            rotate=False,
            prune=given["prune"],
            limited=(given["min_memories"], given["min_messages"]) != (None, None),
        )
        if shape not in FOLDERS or not is_folder(output, shape):
            refuse_taken(output, shape, shard, force=given["force"])


def refuse_with_ray(
    context: typer.Context,
    run: Run,
    texts: Mapping[str, str],
    locations: Mapping[str, list[Location]],
) -> None:
    """Refuse what other machines should not see, or would not find.

    ``texts`` are the stores as they were written, by parameter.

    Raises:
        UsageError: always in such a case.
    """
    for name, text in texts.items():
        if redact_value(text) != visible(text):
            label = locations[name][0].label
            raise UsageError(
                f"{label} has a password, which --on ray would show to all workers",
                "use an alias with password_env or password_file",
            )
    paths = [place.path for place in chain(*locations.values()) if place.path != Path()]
    paths += [value for value in context.params.values() if isinstance(value, Path)]
    if run.config_file is not None:
        paths.append(run.config_file)
    if output := context.params.get("output"):
        paths.append(Path(output))
    for path in paths:
        if not path.is_absolute():
            raise UsageError(
                f"--on ray needs absolute paths, not {visible(str(path))}",
                "name a path that all workers share",
            )


def refuse_absent_everywhere(
    given: dict[str, Any],
    where: Selection | None,
    report: Any,
    places: Iterable[Location],
) -> None:
    """Refuse a user or session that no part has found, as an undivided command does.

    Raises:
        NotFound: there is no memory of them.
    """
    if where is None:
        users, sessions = (frozenset(given.get(name) or ()) for name in ("user", "session"))
        where = Selection(users=users, sessions=sessions)
    found = getattr(report, "totals", report)
    found = getattr(found, "memories", getattr(found, "groups", 0))
    if isinstance(found, Row):
        counts = asdict(found)
        found = counts.get("selected", sum(counts.values()))
    if where.whole:
        refuse_absent(where, bool(found), *places)
