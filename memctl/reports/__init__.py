"""What commands report, as typed objects: JSON, rows and JSON Schemas are derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FORMS: Mapping[str, Sequence[str]] = {
    "compress": ("change.CompressReport",),
    "config": ("config.ConfigReport", "config.ConfigCheckReport"),
    "context": ("context.ContextReport",),
    "delete": ("change.DeleteReport",),
    "doctor": ("doctor.DoctorReport",),
    "erase": ("erase.EraseReport",),
    "export": ("copy.ExportReport",),
    "history": ("history.HistoryReport",),
    "hold": ("hold.HoldReport", "hold.HoldAddedReport", "hold.HoldRemovedReport"),
    "import": ("copy.ImportReport",),
    "index": ("index.IndexReport", "index.IndexUpdateReport", "index.IndexRemoveReport"),
    "inspect": (
        *("inspect.InspectReport", "inspect.InspectByReport", "inspect.InspectMessagesReport"),
        *("inspect.InspectRotationReport", "inspect.InspectCheckpointsReport"),
    ),
    "log": ("log.LogLine",),
    "mark": ("change.MarkReport", "change.MarksReport"),
    "migrate": ("copy.MigrateReport",),
    "offload": ("change.OffloadReport", "change.PruneReport"),
    "redact": ("redact.RedactReport",),
    "rehydrate": ("change.RehydrateReport",),
    "rename": ("change.RenameReport",),
    "report": ("statistics.ReportReport",),
    "restore": ("copy.RestoreReport",),
    "retain": ("retain.RetainReport",),
    "search": ("search.SearchReport",),
    "stores": ("stores.StoresReport", "stores.TablesReport"),
    "tail": ("inspect.TailReport",),
    "undo": ("change.UndoReport",),
    "verify": ("verify.VerifyReport", "verify.VerifyArchiveReport", "verify.VerifyReceiptReport"),
    "version": ("version.VersionReport",),
}
"""The classes of the reports of each command; ``log`` is the messages on stderr."""


def schema_names() -> list[str]:
    """Return the names of all JSON Schemas: commands, and ``log`` for the messages on stderr."""
    return list(FORMS)
