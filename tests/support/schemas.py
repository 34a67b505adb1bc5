"""Strict checks of reports against memctl's schemas, so that code and schemas stay equal."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from memctl.reports.schema import schema_text

_ENOUGH = 1000
"""The number of checked rows of a long list; the same code makes further rows."""


@cache
def _validator(command: str, row: bool) -> Draft202012Validator:
    schema = json.loads(schema_text(command))
    if row:
        schema = {"$defs": schema["$defs"], "$ref": "#/$defs/row"}
    return Draft202012Validator(schema)


def check(report: dict[str, Any]) -> None:
    """Assert that a report is valid for the schema of the command."""
    _, command, version = report["schema"].split("/")
    assert version == "1"
    short = {
        name: value[:_ENOUGH] if isinstance(value, list) else value
        for name, value in report.items()
    }
    _assert_none(_validator(command, row=False), short)


def check_row(command: str, row: dict[str, Any]) -> None:
    """Assert that a line of NDJSON is valid for the schema of the command."""
    _assert_none(_validator(command, row=True), row)


def check_log(line: dict[str, Any]) -> None:
    """Assert that a message of ``--log-format json`` fits the schema."""
    _assert_none(_validator("log", row=False), line)


def _assert_none(validator: Draft202012Validator, value: Any) -> None:
    errors = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]
    assert not errors, errors
