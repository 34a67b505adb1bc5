"""AgentScope's tables in MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.mysql import MysqlDatabase, MysqlSyntax, insert_statement
from memctl.engines.sql.syntax import CHUNK_BYTES
from memctl.stores.agentscope1.sql.statements import Statements
from memctl.stores.agentscope1.sql.tables import MemoryTables

_STAGED_KEYS = "memctl_keys"
"""The name of a temporary table of row ids; in ``connection.info`` the key of the same row ids."""


MAX_ROW_IDS = 1000
"""The maximum number of row ids as parameters of a SELECT, so that the SELECT fits a packet."""


class MysqlStatements(Statements, MysqlSyntax):
    """The statements for MySQL or MariaDB."""

    mark_array = "JSON_ARRAYAGG(k.mark)"
    # To find the size InnoDB must read the message, so parsing costs little more than the search.
    scans_for_huge = False
    proves_json = False  # in MariaDB the column is a text, with a check that accepts "\\1" and 1e
    shifts_key = "(KEY (session_id, low))"

    def field(self, name: str) -> str:
        value = f"JSON_EXTRACT(m.msg, '$.{name}')"
        return f"CASE WHEN JSON_TYPE({value}) = 'STRING' THEN JSON_UNQUOTE({value}) END"

    def is_plain_id(self) -> str:
        row_id, owner = self.exact("m.id"), self.exact("s.user_id")
        between = self.exact("CONCAT('-', m.session_id, '-')")
        return (
            f"LOCATE({between}, {row_id}) = LENGTH({owner}) + 1 "
            f"AND LEFT({row_id}, LENGTH({owner})) = {owner} "
            f"AND LOCATE({between}, {row_id}, LENGTH({owner}) + 2) = 0"
        )

    def message_id(self) -> str:
        return "SUBSTRING(m.id, CHAR_LENGTH(s.user_id) + CHAR_LENGTH(m.session_id) + 3)"

    def parsed_user(self) -> str:
        end = f"CONCAT('-', m.session_id, '-', {self.field('id')})"
        return (
            f"CASE WHEN RIGHT(m.id, CHAR_LENGTH({end})) = {end} "
            f"THEN LEFT(m.id, CHAR_LENGTH(m.id) - CHAR_LENGTH({end})) END"
        )

    def marks(self, more: str = "") -> tuple[str, str]:  # noqa: ARG002 - nothing is joined
        # MariaDB cannot index grouped rows, because ids are longer than the keys of temporary
        # tables.  A join would compare each message with each mark.
        return f"(SELECT {self.mark_array} FROM message_mark k WHERE k.msg_id = m.id)", ""

    def keyed_rows(self, table: str, column: str) -> str:
        # With a plain condition the server would read a small table as a whole, despite an index
        # hint, and wait for rows locked by other programs.
        return (
            f"{_STAGED_KEYS} n STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.{column} = n.id"
        )

    def delete_keyed(self, table: str, column: str) -> str:
        return f"DELETE t FROM {self.keyed_rows(table, column)}"

    def is_unused(self, child: str, column: str) -> str:
        # The first condition uses an index, the second compares exactly.
        same = f"c.{column} = t.id AND {self.exact(f'c.{column}')} = {self.exact('t.id')}"
        return f"NOT EXISTS (SELECT 1 FROM {child} c WHERE {same})"

    def no_object(self) -> str:
        # Python accepts some JSON that the server rejects, such as NaN.
        return "IF(JSON_VALID(msg), JSON_TYPE(msg) <> 'OBJECT', 1)"

    def as_bytes(self, text: str) -> str:
        return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"

    def message_size(self) -> str:
        return self.json_size("m.msg")

    def update_index(self, table: str, old: str, new: str) -> str:
        return (
            f"UPDATE message m JOIN {table} t ON t.id = m.id "
            f"SET {self.index} = t.{new} WHERE {self.index} = t.{old}"
        )

    def drop_session_index(self, name: str) -> str:
        return f"DROP INDEX {name} ON message"


class MysqlTables(MemoryTables, MysqlDatabase):
    """AgentScope's tables in MySQL or MariaDB."""

    syntax_class = MysqlStatements
    syntax: MysqlStatements

    async def begin_write(self, connection: AsyncConnection) -> None:
        connection.info.pop(_STAGED_KEYS, None)  # a rollback empties the table
        await super().begin_write(connection)

    async def fetch_message(self, connection: AsyncConnection, row_id: str) -> bytes:
        # In pieces, because the driver would copy a large value three times.
        piece = (
            f"SELECT SUBSTRING(CAST(msg AS BINARY), :at, {CHUNK_BYTES}) FROM message WHERE id = :id"
        )
        pieces = []
        at = 1
        while found := (await connection.execute(piece, {"at": at, "id": row_id})).scalar():
            pieces.append(found)
            at += len(found)
        return b"".join(pieces)

    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        await self._stage_keys(connection, tuple(row_ids))
        result = await connection.execute(sql)
        return result.all() if result.returns_rows else []

    async def _stage_keys(self, connection: AsyncConnection, row_ids: tuple[str, ...]) -> None:
        """Write row ids to the table ``_STAGED_KEYS``, unless the table has just these ids."""
        if connection.info.get(_STAGED_KEYS) == row_ids:
            return
        connection.info.pop(_STAGED_KEYS, None)
        # The type comes from the ids of sessions.  A read of ``message`` before a write would block
        # the creation of an index on ``message``, and the creation would block the read.
        await connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGED_KEYS} "
            "AS SELECT id FROM session WHERE 1 = 0"
        )
        await connection.exec_driver_sql(f"DELETE FROM {_STAGED_KEYS}")
        rows = [(row_id,) for row_id in row_ids]
        await connection.exec_driver_sql(insert_statement("INSERT", _STAGED_KEYS, ["id"]), rows)
        connection.info[_STAGED_KEYS] = row_ids

    async def select_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        found: list[Any] = []
        for start in range(0, len(row_ids), MAX_ROW_IDS):
            values = {"rows": list(row_ids[start : start + MAX_ROW_IDS])}
            result = await connection.execute(sql, self.statements.bound(sql, values))
            found += result.all()
        return found

    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        sql = insert_statement("INSERT", table, columns) + " ON DUPLICATE KEY UPDATE id = id"
        return (await connection.exec_driver_sql(sql, rows)).rowcount
