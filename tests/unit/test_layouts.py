"""Tests that what recognizes a database names the tables and columns that the layouts declare."""

from __future__ import annotations

from sqlalchemy import MetaData

from memctl.layouts import sql
from memctl.stores.agentscope1.sql import declared, schema
from memctl.stores.agentscope2 import tables
from memctl.stores.tables.presets import PRESETS

DECLARED = {"memory": declared.METADATA, "agentscope2": tables.METADATA}


def test_layouts_of_agentscope_are_as_declared() -> None:
    for layout, metadata in DECLARED.items():
        assert sql.ALL_TABLES[layout] == metadata.tables.keys()
        for name, columns in sql.AGENTSCOPE_TABLES[layout].items():
            assert columns == set(metadata.tables[name].columns.keys())


def test_layouts_of_memory_are_examined_as_they_are_declared() -> None:
    tables = declared.METADATA.tables
    assert {
        name: {column.name: str(column.type) for column in table.columns}
        for name, table in tables.items()
    } == schema.TABLES
    assert {
        name: tuple(table.primary_key.columns.keys()) for name, table in tables.items()
    } == schema.PRIMARY_KEYS


def test_layouts_of_presets_are_as_declared() -> None:
    assert sql.PRESET_TABLES.keys() == PRESETS.keys()
    for layout, preset in PRESETS.items():
        metadata = MetaData()
        assert preset.make is not None
        preset.make(preset, metadata)
        found = sql.PRESET_TABLES[layout]
        assert found.name == preset.table
        assert found.columns == set(metadata.tables[preset.table].columns.keys())
        assert found.more == set(preset.more.values())
