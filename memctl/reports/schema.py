"""The JSON Schemas of the reports, made from their classes."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from textwrap import dedent
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET
from msgspec.structs import fields

from memctl.errors import UsageError
from memctl.reports import FORMS
from memctl.reports.report import LAST, Error, Row
from memctl.text.words import did_you_mean

_STABLE = "Keys are added in later versions, never renamed; keys that do not apply are left out."
_ROW = " '$defs/row' is a line of --format ndjson."
_WARNINGS = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Warnings, one line each; the same lines are on stderr.",
}
_Schema = dict[str, Any]


def classes_of(name: str) -> list[type[Row]]:
    """Return the classes of the reports of a command, or that of the messages on stderr."""
    found = []
    for place in FORMS[name]:
        module, _, own = place.partition(".")
        found.append(getattr(import_module(f"memctl.reports.{module}"), own))
    return found


def schema_text(name: str) -> str:
    """Return the text of a JSON Schema; ``name`` is a name from ``schema_names``.

    Raises:
        UsageError: there is no schema with this name.
    """
    if name not in FORMS:
        known = f"schemas: {', '.join(FORMS)}"
        raise UsageError(f"there is no schema named {name!r}", did_you_mean(name, FORMS, known))
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def schema(name: str) -> _Schema:
    """Return a JSON Schema; ``name`` is a name from ``schema_names``."""
    forms = classes_of(name)
    rows = [one for form in forms for one in _row_classes(form)]
    _, parts = msgspec.json.schema_components([*forms, *rows, Error], ref_template="#/$defs/{name}")
    for one in _all_classes([*forms, *rows, Error]):
        _describe(parts[one.__name__], one)
    own = [parts.pop(form.__name__) for form in forms]
    log = name == "log"
    told = [text.rstrip(".") for form in forms if (text := inspect.getdoc(form))]
    found = {key: value for one in own for key, value in one["properties"].items()}
    head: _Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:memctl:{name}:1",
        "title": "A message of memctl --log-format json" if log else f"memctl {name} --json",
        "description": f"{'; or: '.join(told)}. {_STABLE}",
        "type": "object",
        "properties": dict(sorted(found.items(), key=lambda item: item[0] in LAST)),
    }
    if log:
        return _named(head | {k: own[0][k] for k in ("required", "additionalProperties")}, parts)
    head["properties"] |= {"schema": {"const": f"memctl/{name}/1"}}
    head["properties"] |= {"warnings": _WARNINGS, "error": {"$ref": "#/$defs/Error"}}
    lines: list[_Schema] = []
    for form, one in zip(forms, own, strict=True):
        lines += [line for line in _lines(form, one, parts) if line not in lines]
    if lines:
        head["description"] += _ROW
        parts["row"] = lines[0] if len(lines) == 1 else {"anyOf": lines}
    return _named(
        {
            **head,
            "required": ["schema", "warnings"],
            "additionalProperties": False,
            "anyOf": [
                {"required": keys} for keys in (*(one["required"] for one in own), ["error"])
            ],
        },
        parts,
    )


def _row_classes(form: type[Row]) -> Iterator[type[Row]]:
    """Yield the classes of the objects that are the rows of a report."""
    for place in getattr(form, "lists", ()):
        found: type[Row] = form
        for name in place.split("."):
            found = next(_classes_in(get_type_hints(found)[name]))
        yield found


def _classes_in(hint: Any) -> Iterator[type[Row]]:
    """Yield the classes of objects in a type, such as ``list[MemoryRow] | UnsetType``."""
    if isinstance(hint, type) and issubclass(hint, Row):
        yield hint
    for inner in get_args(hint):
        yield from _classes_in(inner)


def _all_classes(classes: Sequence[type[Row]]) -> set[type[Row]]:
    """Return the classes with those of all objects in them."""
    found, open_ = set(classes), [*classes]
    while open_:
        inner = {one for hint in get_type_hints(open_.pop()).values() for one in _classes_in(hint)}
        open_ += inner - found
        found |= inner
    return found


def _describe(schema: _Schema, one: type[Row]) -> None:
    """Add the docstrings of the fields of a class to the schema of its objects."""
    del schema["title"]
    schema["required"] = [field.encode_name for field in fields(one) if field.default is not UNSET]
    names = dict(zip(one.__struct_fields__, one.__struct_encode_fields__, strict=True))
    for base in (base for base in one.__mro__ if base.__module__.startswith("memctl.")):
        body = ast.parse(dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(said))),
                ) if name in names:
                    place = schema["properties"][names[name]]
                    place["description"] = " ".join(said.split())


def _lines(form: type[Row], own: _Schema, parts: Mapping[str, _Schema]) -> list[_Schema]:
    """Return the schemas of the rows of a report."""
    if form.flat:
        return [_flattened(form, own, parts)]
    return [
        _flattened(one, parts[one.__name__], parts)
        if one.flat
        else {"$ref": f"#/$defs/{one.__name__}"}
        for one in _row_classes(form)
    ]


def _flattened(one: type[Row], own: _Schema, parts: Mapping[str, _Schema]) -> _Schema:
    """Return the schema of a row that has the fields ``flat`` of an object; as ``Row.row``."""
    found: _Schema = {}
    for place in one.flat:
        name, _, inner = place.partition(".")
        value = own["properties"][name]
        optional = name not in own["required"]
        refs = [ref for ref in (value, *value.get("anyOf", ())) if "$ref" in ref]
        if refs:
            below = parts[refs[0]["$ref"].rpartition("/")[2]]["properties"]
            if inner:
                found[name] = _or_null(below[inner]) if refs[0] is not value else below[inner]
            else:
                found |= {f"{name}_{key}": _cell(one) for key, one in below.items()}
        elif name in one.joined:
            found[name] = {"type": "string", "description": value["description"]}
        else:
            found[name] = _or_null(value) if optional else _cell(value)
    return {
        "type": "object",
        "properties": found,
        "required": list(found),
        "additionalProperties": False,
    }


def _cell(schema: _Schema) -> _Schema:
    """Return the schema of a cell of a row: of a list, the number of its items."""
    if schema.get("type") != "array":
        return schema
    said = {key: schema[key] for key in ("description",) if key in schema}
    return {"type": "integer", "minimum": 0} | said


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _named(schema: _Schema, parts: Mapping[str, _Schema]) -> _Schema:
    """Return a schema with its ``$defs``, named in lower case: ``tool-row`` for ``ToolRow``."""
    names = {name: re.sub("(?<=.)([A-Z])", r"-\1", name).lower() for name in parts}
    whole = schema | {"$defs": {name: parts[name] for name in sorted(parts)}}
    text = json.dumps(whole)
    for name, own in names.items():
        text = text.replace(f'"#/$defs/{name}"', f'"#/$defs/{own}"')
    found: _Schema = json.loads(text)
    found["$defs"] = {names[name]: value for name, value in found["$defs"].items()}
    return found
