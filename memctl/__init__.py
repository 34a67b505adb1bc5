"""memctl: administers the memory of LLM agents.

The public interface for programs, described in ``docs/library.md``.  Each name is imported on
first use, so that ``import memctl`` loads no driver.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in ``typing``, which takes longer to load than this module

if TYPE_CHECKING:
    from typing import Any

    from memctl.api import Changed as Changed
    from memctl.api import Compressed as Compressed
    from memctl.api import Copied as Copied
    from memctl.api import Erased as Erased
    from memctl.api import Redacted as Redacted
    from memctl.api import Repaired as Repaired
    from memctl.api import add_hold as add_hold
    from memctl.api import compare as compare
    from memctl.api import compress as compress
    from memctl.api import context as context
    from memctl.api import copy as copy
    from memctl.api import delete as delete
    from memctl.api import erase as erase
    from memctl.api import examine as examine
    from memctl.api import export as export
    from memctl.api import history as history
    from memctl.api import inspect as inspect
    from memctl.api import list_holds as list_holds
    from memctl.api import list_indexes as list_indexes
    from memctl.api import mark as mark
    from memctl.api import offload as offload
    from memctl.api import open_store as open_store
    from memctl.api import prune_blobs as prune_blobs
    from memctl.api import redact as redact
    from memctl.api import rehydrate as rehydrate
    from memctl.api import remove_hold as remove_hold
    from memctl.api import remove_index as remove_index
    from memctl.api import rename as rename
    from memctl.api import repair as repair
    from memctl.api import restore_checkpoints as restore_checkpoints
    from memctl.api import retain as retain
    from memctl.api import search as search
    from memctl.api import statistics as statistics
    from memctl.api import undo as undo
    from memctl.api import update_index as update_index
    from memctl.embedder import Embedder as Embedder
    from memctl.embedders.registry import make_embedder as make_embedder
    from memctl.encryption import Encryption as Encryption
    from memctl.engines.sql.rows.store import RowStore as RowStore
    from memctl.engines.sql.rows.tables import Rows as Rows
    from memctl.engines.sql.rows.tables import RowTable as RowTable
    from memctl.errors import BadData as BadData
    from memctl.errors import Busy as Busy
    from memctl.errors import Different as Different
    from memctl.errors import Failure as Failure
    from memctl.errors import Interrupted as Interrupted
    from memctl.errors import Loss as Loss
    from memctl.errors import Lost as Lost
    from memctl.errors import MemctlError as MemctlError
    from memctl.errors import NotFound as NotFound
    from memctl.errors import Unavailable as Unavailable
    from memctl.errors import UsageError as UsageError
    from memctl.holds import Hold as Hold
    from memctl.index.folder import IndexInfo as IndexInfo
    from memctl.inference.settings import Settings as Settings
    from memctl.journal.holds import RecordedHold as RecordedHold
    from memctl.journal.runs import Run as Run
    from memctl.location import Location as Location
    from memctl.model import Change as Change
    from memctl.model import Edit as Edit
    from memctl.model import Embedding as Embedding
    from memctl.model import Finding as Finding
    from memctl.model import Memory as Memory
    from memctl.model import MemoryInfo as MemoryInfo
    from memctl.model import MemoryKey as MemoryKey
    from memctl.model import OnConflict as OnConflict
    from memctl.model import Page as Page
    from memctl.model import ServiceHit as ServiceHit
    from memctl.model import StoredMessage as StoredMessage
    from memctl.model import ToolPairPolicy as ToolPairPolicy
    from memctl.model import WriteMode as WriteMode
    from memctl.model import WriteResult as WriteResult
    from memctl.ops.change.change import RunOptions as RunOptions
    from memctl.ops.compress.plan import CompressMode as CompressMode
    from memctl.ops.compress.plan import CompressOptions as CompressOptions
    from memctl.ops.context import ContextMessage as ContextMessage
    from memctl.ops.copy.compare import CompareReport as CompareReport
    from memctl.ops.copy.copy import CopyOptions as CopyOptions
    from memctl.ops.doctor.check import Diagnosis as Diagnosis
    from memctl.ops.doctor.check import Limits as Limits
    from memctl.ops.export.destination import Shape as Shape
    from memctl.ops.export.run import ExportOptions as ExportOptions
    from memctl.ops.export.run import ExportReport as ExportReport
    from memctl.ops.history import RunList as RunList
    from memctl.ops.holds import HoldSource as HoldSource
    from memctl.ops.index import IndexUse as IndexUse
    from memctl.ops.inspect import Catalogue as Catalogue
    from memctl.ops.inspect import Sort as Sort
    from memctl.ops.offload.slim import Rule as Rule
    from memctl.ops.retry import Transfer as Transfer
    from memctl.ops.search import Hit as Hit
    from memctl.ops.search import SearchReport as SearchReport
    from memctl.ops.statistics import Statistics as Statistics
    from memctl.ops.statistics import StatisticsOptions as StatisticsOptions
    from memctl.ops.stop import Stop as Stop
    from memctl.registry import Layout as Layout
    from memctl.registry import StoreSpec as StoreSpec
    from memctl.reports.retain import RetainReport as RetainReport
    from memctl.retention import Policy as Policy
    from memctl.retention import PolicyAction as PolicyAction
    from memctl.selection import Selection as Selection
    from memctl.store import Features as Features
    from memctl.store import Maintenance as Maintenance
    from memctl.store import OpenMode as OpenMode
    from memctl.store import Store as Store
    from memctl.storekit.edits import Snapshot as Snapshot
    from memctl.storekit.facts import FactEntry as FactEntry
    from memctl.storekit.facts import FactStore as FactStore
    from memctl.storekit.facts import LoadedFact as LoadedFact
    from memctl.storekit.files import AtomicFile as AtomicFile
    from memctl.storekit.files import system_errors as system_errors
    from memctl.storekit.simple import Rejected as Rejected
    from memctl.storekit.simple import SimpleStore as SimpleStore
    from memctl.storekit.simple import VersionChanged as VersionChanged
    from memctl.summarizer import Summarizer as Summarizer
    from memctl.summarizers.registry import make_summarizer as make_summarizer
    from memctl.version import __version__ as __version__
    from memctl.wrappers.rate_limit import Rate as Rate

_HOMES = {
    "api": "Changed Compressed Copied Erased Redacted Repaired add_hold compare compress context "
    "copy delete erase examine export history inspect list_holds list_indexes mark offload "
    "open_store prune_blobs redact rehydrate remove_hold remove_index rename repair "
    "restore_checkpoints "
    "retain search statistics undo update_index",
    "embedder": "Embedder",
    "embedders.registry": "make_embedder",
    "encryption": "Encryption",
    "engines.sql.rows.store": "RowStore",
    "engines.sql.rows.tables": "RowTable Rows",
    "errors": "BadData Busy Different Failure Interrupted Loss Lost MemctlError NotFound "
    "Unavailable UsageError",
    "holds": "Hold",
    "index.folder": "IndexInfo",
    "inference.settings": "Settings",
    "journal.holds": "RecordedHold",
    "journal.runs": "Run",
    "location": "Location",
    "model": "Change Edit Embedding Finding Memory MemoryInfo MemoryKey OnConflict Page "
    "ServiceHit StoredMessage ToolPairPolicy WriteMode WriteResult",
    "ops.change.change": "RunOptions",
    "ops.compress.plan": "CompressMode CompressOptions",
    "ops.context": "ContextMessage",
    "ops.copy.compare": "CompareReport",
    "ops.copy.copy": "CopyOptions",
    "ops.doctor.check": "Diagnosis Limits",
    "ops.export.destination": "Shape",
    "ops.export.run": "ExportOptions ExportReport",
    "ops.history": "RunList",
    "ops.holds": "HoldSource",
    "ops.index": "IndexUse",
    "ops.inspect": "Catalogue Sort",
    "ops.offload.slim": "Rule",
    "ops.retry": "Transfer",
    "ops.search": "Hit SearchReport",
    "ops.statistics": "Statistics StatisticsOptions",
    "ops.stop": "Stop",
    "registry": "Layout StoreSpec",
    "reports.retain": "RetainReport",
    "retention": "Policy PolicyAction",
    "selection": "Selection",
    "store": "Features Maintenance OpenMode Store",
    "storekit.edits": "Snapshot",
    "storekit.facts": "FactEntry FactStore LoadedFact",
    "storekit.files": "AtomicFile system_errors",
    "storekit.simple": "Rejected SimpleStore VersionChanged",
    "summarizer": "Summarizer",
    "summarizers.registry": "make_summarizer",
    "version": "__version__",
    "wrappers.rate_limit": "Rate",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
