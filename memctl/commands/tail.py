"""``memctl tail``: shows new messages as they come."""

from __future__ import annotations

from typing import Annotated

from memctl.commands._context import Run
from memctl.commands._options import PathOption, StoreArgument, opens_stores
from memctl.commands._parameters import option
from memctl.commands._run import readable, wait_for
from memctl.commands.inspect import print_messages
from memctl.location import Location
from memctl.ops.observer import opened
from memctl.ops.stop import Stop
from memctl.ops.tail import Tail
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.selection import Selection


@opens_stores
def tail(
    run: Run,
    store: StoreArgument,
    where: Selection,
    interval: Annotated[
        float, option("--interval SECONDS", "Look for new messages this often.", min=0.1)
    ] = 2.0,
    ids: Annotated[bool, option("--ids", "Show the ids of messages.")] = False,
    path: PathOption = None,
) -> None:
    """Show new messages as they come.

    Ends at Ctrl-C. Works for stores that can tell quickly what is new, such as the SQL and Redis
    memories of AgentScope 1.x, tables, and lists in Redis. --last begins with the newest
    messages. --json writes a line of JSON for each message.

    Examples:
      memctl tail agents.db
      memctl tail agents.db --user ada --last 5
      memctl tail agents.db --role user --json
    """
    if run.output.format is Format.JSON:
        run.output.format = Format.NDJSON
    stop = Stop()
    with readable(run.locate(store), where, path) as location:
        wait_for(_tail(run.output, location, where, interval, stop, ids=ids), stop)


async def _tail(
    output: Output, location: Location, where: Selection, interval: float, stop: Stop, *, ids: bool
) -> None:
    async with opened(make_store(location), output) as store:
        await print_messages(output, store, Tail(store, where).pages(stop, interval), ids)
