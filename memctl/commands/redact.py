"""``memctl redact``: takes secrets and texts out of stores, undo runs and archives."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import recorded_stores, run_options
from memctl.commands._offloaded import referrers
from memctl.commands._options import (
    STORE_HELP,
    DryRunOption,
    EmbedderOption,
    SessionOption,
    UserOption,
    YesOption,
    guarding,
    opens_stores,
    printing,
    selecting,
)
from memctl.commands._parameters import argument, option
from memctl.commands._run import named_embedder, wait_for
from memctl.config.offload import read_offload
from memctl.errors import UsageError
from memctl.ops.offload.blobs import Blobs
from memctl.ops.redact.receipt import Receipt
from memctl.ops.redact.redactor import Redactor
from memctl.ops.redact.rules import Rule, Rules, expression, secrets
from memctl.ops.redact.run import Redaction
from memctl.ops.redact.vectors import FactVectors
from memctl.output import redacting
from memctl.output.printout import Printout
from memctl.selection import Selection
from memctl.storekit.named_file import LocalFile
from memctl.text.numbers import count


@opens_stores
def redact(
    run: Run,
    stores: Annotated[list[str] | None, argument("STORE", STORE_HELP)] = None,
    secret: Annotated[
        bool, selecting("--secrets", "Find keys, tokens and passwords by the rules of gitleaks.")
    ] = False,
    match: Annotated[
        list[str] | None, selecting("--match TEXT", "Find this text, in the same case.")
    ] = None,
    regex: Annotated[
        list[str] | None,
        selecting("--regex RE", "Find what this regular expression matches, as Python reads it."),
    ] = None,
    source: Annotated[
        str | None, selecting("--from FILE", "Find each line of FILE; '-' is standard input.")
    ] = None,
    user: UserOption = None,
    session: SessionOption = None,
    archives: Annotated[
        list[str] | None,
        selecting(
            "--archives FILE",
            "Also take it out of this archive, or all files of a rotation; they are rewritten.",
        ),
    ] = None,
    blobs: Annotated[
        str | None,
        option("--blobs DIR|URL", "The offloaded contents, unless the configuration names them."),
    ] = None,
    embedder: EmbedderOption = None,
    consistent: Annotated[
        bool, option("--consistent", "Number the replacements: the same value, the same number.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    receipt: Annotated[
        str | None, printing("--receipt FILE", "Write the receipt to FILE, or s3://...")
    ] = None,
    force: Annotated[
        bool, guarding("--force", "Replace the file of --receipt if it exists.")
    ] = False,
) -> None:
    """Take secrets or texts out of stores. Cannot be undone.

    Each value becomes [redacted:KIND]: in messages, summaries and states, in files and rows beside
    them, in undo runs, archives and offloaded contents. With --user or --session, only what belongs
    to these memories changes. A fact with a vector needs an embedder, for the vector of its new
    text. With --dry-run, finds the values, and exits with 6 if there are any. Values are shown by
    at most four characters.

    Examples:
      memctl redact @agents --secrets --dry-run
      memctl redact agents.db claude-code: --secrets --yes --receipt secrets.json
      memctl redact prod --user ada --archives backup.ndjson.zst --from leaked.txt
    """
    output = run.output
    if not (stores or archives):
        raise UsageError("no store is named", "name one: memctl redact STORE... --secrets")
    model = named_embedder(run, embedder)
    redactor = Redactor(
        _rules(secret, match, regex, source),
        consistent=consistent,
        vectors=None if model is None else FactVectors(model),
    )
    begun: Receipt | None = None
    if not dry_run:
        refuse_unasked(yes)
        begun = Receipt.begin(receipt, force=force)
    elif receipt is not None:
        raise UsageError("--receipt and --dry-run cannot be combined", "choose one")
    members = [name for store in stores or () for name in run.members(store)]
    place = blobs or read_offload(run.configuration()).to
    redaction = Redaction(
        redactor,
        recorded_stores(run, "redact", members, archives or []),
        run_options(run, dry_run=dry_run),
        Blobs(place) if place else None,
        referrers(run),
        Selection(users=frozenset(user or ()), sessions=frozenset(session or ())),
    )
    wait_for(redaction.scan())
    output.printout = Printout(
        redaction.report, lambda: redacting.screen(redaction.report()), of_run=not dry_run
    )
    if begun is not None and (redaction.hits or begun.goes_on):
        if redaction.hits and not yes:
            _ask(redaction)
        wait_for(redaction.execute(begun))
    if error := redaction.error():
        raise error
    output.emit()


def _rules(
    secret: bool, match: list[str] | None, regex: list[str] | None, source: str | None
) -> Rules:
    """Return the rules of the options.

    Raises:
        UsageError: no option says what to find, or one names nothing.
    """
    rules: list[Rule] = [*(secrets() if secret else ()), *map(expression, regex or ())]
    texts = [*(match or ()), *(_lines(source) if source else ())]
    if "" in texts:
        raise UsageError("--match is empty", "check for an unset variable")
    if not rules and not texts:
        raise UsageError(
            "nothing says what to find", "use --secrets, --match TEXT, --regex RE or --from FILE"
        )
    return Rules(rules, list(dict.fromkeys(texts)))


def _lines(source: str) -> list[str]:
    """Return the lines of a file, without empty ones.

    Raises:
        UsageError: the file has no lines, or is no text in UTF-8.
        NotFound, Unavailable: the file cannot be read.
    """
    if source == "-":
        data = sys.stdin.buffer.read()
    else:
        with os.fdopen(LocalFile(Path(source).expanduser()).open(), "rb") as file:
            data = file.read()
    try:
        lines = [line for line in data.decode().splitlines() if line]
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--from {source} is not text in UTF-8", "write one text a line"
        ) from error
    if not lines:
        raise UsageError(f"--from {source} has no text", "write one text a line")
    return lines


def _ask(redaction: Redaction) -> None:
    places = [target for target in redaction.targets if target.found.hits]
    values = count(redaction.hits, "value")
    confirm(f"redact {values} in {count(len(places), 'store')}? this cannot be undone;")
