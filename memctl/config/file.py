"""The tables of the configuration file, and what is read of them when memctl starts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from msgspec import Meta, field, to_builtins
from msgspec.structs import asdict

from memctl.config import FLEET, Alias, Config, Fleet, refuse_unknown_store, secrets
from memctl.config.trust import tables_of
from memctl.engines.objects.address import OPTIONS, S3, is_object
from memctl.errors import UsageError
from memctl.journal.retention import Retention
from memctl.registry import PREFIXES
from memctl.text.toml import Keys, Natural, Table, Text, means, read_table
from memctl.text.words import refuse_unknown

Tables = Annotated[dict[str, Any], means("a table", "[KEY.NAME]")]
Listed = Annotated[list[dict[str, Any]], means("a list of tables", "[[KEY]]")]
Columns = Annotated[
    dict[str, Text | Annotated[tuple[Text, ...], Meta(min_length=1)]],
    means("a table of columns", 'KEY = { session = "session_id", content = "content" }'),
]
Stores = Annotated[
    tuple[str, ...],
    means("a list of stores, each once", 'KEY = ["prod-00", "prod-01"]', min_length=1),
]
_FACTORY = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class UndoTable(Table, kw_only=True, frozen=True):
    """``[undo]``: the age in days and the size in bytes of the runs kept for undo."""

    days: Natural = 30
    bytes: Natural = 1_000_000_000


class File(Table, kw_only=True, frozen=True):
    """All tables; those of models, defaults, keys, policies and holds are checked on use."""

    stores: Tables = field(default_factory=dict)
    fleets: Tables = field(default_factory=dict)
    summarizers: Tables = field(default_factory=dict)
    embedders: Tables = field(default_factory=dict)
    defaults: Annotated[Keys, means("a table", "[defaults.COMMAND]")] = field(default_factory=dict)
    encryption: Keys = field(default_factory=dict)
    offload: Keys = field(default_factory=dict)
    undo: UndoTable = UndoTable()
    retention: Listed = field(default_factory=list)
    holds: Listed = field(default_factory=list, name="hold")


class StoreTable(Table, kw_only=True, frozen=True):
    """``[stores.NAME]``; the keys from ``layout`` on are options of the store's URL."""

    url: Text = ""
    factory: Annotated[
        str, means("the name of a function", 'KEY = "package.module:function"', pattern=_FACTORY)
    ] = ""
    password_env: Text = ""
    password_file: Text = ""
    password_command: Text = ""
    password_keyring: Text = ""
    layout: Text = ""
    table: Text = ""
    columns: Columns = field(default_factory=dict)
    dialect: Text = ""
    content_encoding: Text = ""
    live: Text = ""
    summary: Text = ""
    owner: Text = ""
    app: Text = ""
    tz: Text = ""
    endpoint: Text = ""
    region: Text = ""
    path_style: Annotated[bool | str, means("true or false", "KEY = true")] = ""


class FleetTable(Table, kw_only=True, frozen=True):
    """``[fleets.NAME]``."""

    stores: Stores


_OPTIONS = StoreTable.__struct_fields__[StoreTable.__struct_fields__.index("layout") :]


def read_file(path: Path, content: dict[str, Any]) -> Config:
    """Return the configuration of the file at ``path``, whose tables are ``content``.

    Dates and times become texts.

    Raises:
        UsageError: a table is unknown, or ``[undo]``, a store or a fleet is not valid.
    """
    file = read_table(path, "", to_builtins(content), File)
    variables = frozenset(
        table[key]
        for _, table in tables_of(content)
        for key in ("password_env", "api_key_env", "identity_env")
        if isinstance(table.get(key), str)
    )
    stores = {name: _alias(path, name, entry, variables) for name, entry in file.stores.items()}
    fleets = {name: _fleet(path, name, entry, stores) for name, entry in file.fleets.items()}
    undo = Retention(**asdict(file.undo))
    return Config(
        path,
        **(asdict(file) | {"stores": stores, "fleets": fleets, "undo": undo}),
        undo_keys=frozenset(content.get("undo", ())),
        found=True,
        secret_variables=variables,
    )


def _alias(path: Path, name: str, entry: Any, secret_variables: frozenset[str]) -> Alias:
    place = f"stores.{name}"
    store = read_table(path, place, entry, StoreTable)
    if store.factory:
        if len(entry) > 1:
            raise UsageError(f"{path}: {place} has a factory and more", "keep the factory alone")
        return Alias(name, f"langchain:{store.factory}", factory=store.factory)
    if not store.url:
        raise UsageError(f"{path}: {place} has no url", 'write url = "..."')
    if store.columns:
        _refuse_unknown_columns(path, f"{place}.columns", store.columns)
    options = {}
    for key in filter(entry.__contains__, _OPTIONS):
        if (key in OPTIONS[S3]) != is_object(store.url):
            raise UsageError(
                f"{path}: {place}.{key} does not fit its url",
                f"{', '.join(OPTIONS[S3])} are for archives in object storage"
                if key in OPTIONS[S3]
                else "it is not for archives in object storage",
            )
        options[key] = _option(getattr(store, key))
    what = f"the password of {name!r}"
    password = secrets.source(path, place, store, "password", what, secret_variables)
    return Alias(name, _with_options(store.url, options), password)


def _refuse_unknown_columns(path: Path, place: str, columns: Columns) -> None:
    from memctl.dialects.rows import COLUMN_ROLES  # only needed for a mapped table

    refuse_unknown(path, f"{place}.", columns, COLUMN_ROLES)
    for role, names in columns.items():
        if role != "order" and not isinstance(names, str):
            raise UsageError(f"{path}: {place}.{role} must be a text", f'write {role} = "COLUMN"')


def _option(value: str | bool | Columns) -> str:
    """Return a setting as the value of an option of a URL."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    named = {role: (one,) if isinstance(one, str) else one for role, one in value.items()}
    return ",".join(
        f"{role}:{';'.join(quote(one, safe=' ') for one in names)}" for role, names in named.items()
    )


def _with_options(url: str, options: dict[str, str]) -> str:
    """Return a URL with ``options`` added to its query; a path becomes a URL.

    Without options, return ``url`` unchanged.
    """
    if not options:
        return url
    if "://" not in url and not url.startswith(PREFIXES):
        states = options.keys() == {"tz"} and Path(url).suffix.lower() in ("", ".json")
        url = f"agentscope1:{url}" if states else f"sqlite:///{quote(url)}"
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote)}"


def _fleet(path: Path, name: str, entry: Any, stores: Collection[str]) -> Fleet:
    place = f"fleets.{name}"
    if not FLEET.fullmatch(f"@{name}"):
        raise UsageError(f"{path}: {place!r} is not a name", "use letters, digits, _ and -")
    names = read_table(path, place, entry, FleetTable).stores
    for one in names:
        refuse_unknown_store(path, place, one, stores)
    if len({*names}) < len(names):
        raise UsageError(f"{path}: {place}.stores must have each store once", "remove the others")
    return Fleet(name, names)
