"""Tests that a store in a SQL database leaves alone what an application keeps there."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from memctl.errors import Loss
from memctl.ops.side_effects import refuse_side_effects
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place, SharedTable
from memctl.testing.drive import changing, edit_all, filled, gone, marked, read

TRIGGERS = {
    "postgresql": [
        "CREATE FUNCTION app_note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO app_log VALUES (1); RETURN old; END'",
        "CREATE TRIGGER app_trigger BEFORE DELETE ON {} FOR EACH ROW EXECUTE FUNCTION app_note()",
    ],
    "mysql": [
        "CREATE TRIGGER app_trigger BEFORE DELETE ON {} FOR EACH ROW INSERT INTO app_log VALUES (1)"
    ],
    "sqlite": [
        "CREATE TRIGGER app_trigger BEFORE DELETE ON {} BEGIN INSERT INTO app_log VALUES (1); END"
    ],
}
OPEN_TRANSACTIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND xact_start IS NOT NULL AND pid <> pg_backend_pid()",
    "mysql": "SELECT trx_id FROM information_schema.innodb_trx t "
    "JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
    "WHERE p.db = DATABASE()",
    "sqlite": "BEGIN EXCLUSIVE",
}
"""By engine, a statement that returns the open transactions of others, or fails if there is one."""


def _table(place: Place) -> SharedTable:
    if place.backend.shared is None:
        pytest.skip("in no SQL database, or the backend does not say in which")
    return place.backend.shared


async def _assert_refused(store: Store, place: Place, said: str) -> None:
    before = place.dump()
    with pytest.raises(Loss) as refused:
        await refuse_side_effects(store, Selection(), _table(place).deletion)
    assert said in refused.value.message
    assert place.dump() == before


class SharedTests:
    """Tests that a store in a SQL database leaves alone what an application keeps there."""

    async def test_shared_references_stop_a_deletion(self, place: Place) -> None:
        table = _table(place)
        if table.engine == "sqlite":
            pytest.skip("SQLite keeps references only for connections that ask for it")
        [one] = await filled(place, 4)
        key = ", ".join(table.key)
        table.execute(place.text, f"CREATE TABLE app_notes AS SELECT {key} FROM {table.name}")
        table.execute(
            place.text,
            f"ALTER TABLE app_notes ADD FOREIGN KEY ({key}) REFERENCES {table.name} ({key}) "
            "ON DELETE CASCADE",
        )
        async with changing(place, [one.key]) as store:
            await _assert_refused(store, place, "'app_notes'")

    async def test_shared_triggers_stop_a_deletion(self, place: Place) -> None:
        table = _table(place)
        [one] = await filled(place, 4)
        table.execute(place.text, "CREATE TABLE app_log (number INTEGER)")
        for sql in TRIGGERS[table.engine]:
            table.execute(place.text, sql.format(table.name))
        async with changing(place, [one.key]) as store:
            await _assert_refused(store, place, "'app_trigger'")

    async def test_shared_columns_keep_their_values(self, place: Place) -> None:
        """Rows that an edit does not delete keep the values of the application."""
        table = _table(place)
        [one] = await filled(place, 4)
        key = ", ".join(table.key)
        table.execute(place.text, f"ALTER TABLE {table.name} ADD COLUMN app_note VARCHAR(9)")
        table.execute(place.text, f"UPDATE {table.name} SET app_note = 'kept'")
        select = f"SELECT {key}, app_note FROM {table.name} ORDER BY {key}"
        before = list(table.execute(place.text, select))
        async with changing(place, [one.key]) as store:
            last = (await read(store))[one.key].entries[-1]
            marks = store.features.marks and samples.possible(("compressed",))
            await edit_all(store, one.key, [marked(last, *marks) if marks else gone(last)])
        after = list(table.execute(place.text, select))
        assert len(after) == len(before) if marks else after
        assert all(row in before for row in after)

    async def test_shared_database_has_no_open_transaction_after_a_look(self, place: Place) -> None:
        """A program may keep a store open for hours; writers and maintenance do not wait for it."""
        table = _table(place)
        await filled(place, 4, 3)
        sql = OPEN_TRANSACTIONS[table.engine]
        found: list[Any] = []
        async with (
            place.store(create=False) as store,
            aclosing(store.list_keys(Selection())) as keys,
        ):
            async for key in keys:
                found += table.execute(place.text, sql)
                await store.window(key, -2, 2)
                found += table.execute(place.text, sql)
        assert found == []
