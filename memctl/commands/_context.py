"""The context of a run, set by the global options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import Struct, field

from memctl.encryption import Encryption
from memctl.errors import MemctlError, UsageError
from memctl.location import Location
from memctl.output.terminal import Output
from memctl.shard import Shard

if TYPE_CHECKING:
    from memctl.config import Config
    from memctl.output.monitoring import Monitoring
    from memctl.parts.child import Orders


class Run(Struct):
    """A run of memctl: the global options, the configuration and the output."""

    config_file: Path | None = None
    output: Output = field(default_factory=Output)
    config: Config | None = None
    """The configuration, once it is read."""
    refusal: MemctlError | None = None
    """The error in the configuration or the environment, if any."""
    monitoring: Monitoring | None = None
    shard: Shard | None = None
    """The part of the run that the user asked for, by ``--shard``."""
    job: str = ""
    """The name that the parts of a divided run share in the history, by ``--job``."""
    orders: Orders | None = None
    """The orders of the supervisor; None if this is no part of a run with ``--shards``."""
    project: str = ""
    """The folder whose sessions alone the run is about, by ``--project``; empty for all."""
    store: str = ""
    """The label of the store that ``locate`` found last: of two stores, the one written to."""

    def locate(self, text: str) -> Location:
        """Return the location of a store; ``text`` is a name in the configuration, a URL or a path.

        Of a fleet, it is the store that this part of the run is on.  At a terminal, ask for a
        password that the server wants and nobody gave.

        Raises:
            Interrupted: a signal came instead of a password.
            UsageError: ``text`` names no store, the configuration is not valid, or this is a part
                of a run on another store.
            NotFound: the named configuration file does not exist.
        """
        from memctl import config  # not needed to show the help
        from memctl.commands._password import ask_password

        text = self.named(text)
        if self.orders is not None:
            self.orders.check_store(text, self.address(text).label)
        found = self._in_project(self.configuration().locate(text, config.environment()))
        self.store = found.label
        return ask_password(found)

    def _in_project(self, location: Location) -> Location:
        """Return the location of the sessions of ``project`` in a store.

        Raises:
            UsageError: the store knows no projects.
        """
        from memctl.registry import spec_of  # imported late, as in ``make_target``

        if not self.project:
            return location
        if location.kind == "stdio" or "project" not in spec_of(location.kind).options:
            raise UsageError(
                f"{location.label} knows no projects: --project is for coding agents",
                "leave it out; of two stores, write it for one: claude-code:?project=PATH",
            )
        return replace(location, options=location.options | {"project": self.project})

    def address(self, text: str) -> Location:
        """Return the location of a store as ``locate`` does, but without a configured password.

        Raises:
            UsageError, NotFound: as ``locate``.
        """
        from memctl import config  # not needed to show the help

        text = self.named(text)
        found = self.configuration()
        alias = found.alias(text)
        if alias is not None:
            return found.with_keys(alias.location(), config.environment())
        return found.locate(text, config.environment())

    def members(self, text: str) -> tuple[str, ...]:
        """Return the names of the stores of the fleet ``text``; of another store, its name.

        Raises:
            UsageError, NotFound: as ``locate``.
        """
        fleet = self.configuration().fleet(text) if text.startswith("@") else None
        return (text,) if fleet is None else fleet.stores

    def named(self, text: str) -> str:
        """Return the name of a store; of a fleet, that of the store this part of the run is on.

        Raises:
            UsageError, NotFound: as ``locate``.
        """
        stores = self.members(text)
        if self.shard is None or self.shard.stores != len(stores):
            return text
        return stores[self.shard.store]

    def encryption(self) -> Encryption:
        """Return the keys of the configuration for encrypted files.

        Raises:
            UsageError, NotFound: the configuration is not valid.
        """
        from memctl import config  # not needed to show the help
        from memctl.config.encryption import read_encryption

        return read_encryption(self.configuration(), config.environment())

    def configuration(self) -> Config:
        """Return the configuration, which is read from its file on first use.

        Raises:
            UsageError: the configuration is not valid.
            NotFound: the named configuration file does not exist.
        """
        if self.config is None:
            from memctl import config  # not needed to show the help

            self.config = config.load(self.config_file, config.environment())
        return self.config


def this_run(context: typer.Context) -> Run:
    """Return the run of memctl to which the command belongs.

    Raises:
        UsageError, NotFound: a setting in the configuration or environment is not valid.
    """
    run = run_as_it_is(context)
    if run.refusal is not None:
        raise run.refusal
    return run


def run_as_it_is(context: typer.Context) -> Run:
    """Return the run of memctl to which the command belongs, even with an invalid configuration."""
    run = context.obj
    assert isinstance(run, Run)
    return run
