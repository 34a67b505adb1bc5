"""The schema of ATIF trajectories: RFC 0001 of Harbor, version 1.8, as far as memctl uses it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator

_Json = dict[str, Any]


def _object(required: _Json, optional: _Json) -> _Json:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | optional,
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_ANY = {"type": "object"}
_IMAGE = _object(
    {"media_type": {"enum": ["image/jpeg", "image/png", "image/gif", "image/webp"]}, "path": _TEXT},
    {},
)
_PART = {
    "oneOf": [
        _object({"type": {"const": "text"}, "text": _TEXT}, {}),
        _object({"type": {"const": "image"}, "source": _IMAGE}, {}),
    ]
}
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": _PART}]}
_RESULT = _object({}, {"source_call_id": _TEXT, "content": _CONTENT, "extra": _ANY})
_CALL = _object({"tool_call_id": _TEXT, "function_name": _TEXT, "arguments": _ANY}, {"extra": _ANY})
_OF_AGENTS = {
    "model_name": _TEXT,
    "reasoning_content": _TEXT,
    "tool_calls": {"type": "array", "items": _CALL},
}
_STEP = _object(
    {
        "step_id": {"type": "integer", "minimum": 1},
        "source": {"enum": ["system", "user", "agent"]},
        "message": _CONTENT,
    },
    {
        "timestamp": _TEXT,
        "observation": _object({"results": {"type": "array", "items": _RESULT}}, {}),
        "extra": _ANY,
        **_OF_AGENTS,
    },
) | {
    "if": {"properties": {"source": {"enum": ["system", "user"]}}},
    "then": {"properties": dict.fromkeys(_OF_AGENTS, False)},
}
_TRAJECTORY = _object(
    {
        "schema_version": {"const": "ATIF-v1.8"},
        "agent": _object({"name": _TEXT, "version": _TEXT}, {"model_name": _TEXT, "extra": _ANY}),
        "steps": {"type": "array", "items": _STEP, "minItems": 1},
    },
    {
        "session_id": _TEXT,
        "trajectory_id": _TEXT,
        "notes": _TEXT,
        "final_metrics": _object({}, {"total_steps": {"type": "integer", "minimum": 0}}),
        "extra": _ANY,
    },
)
_VALIDATOR = Draft202012Validator(_TRAJECTORY)


def check(trajectory: _Json) -> None:
    """Assert that a trajectory is valid: fields, numbers, times and references."""
    _VALIDATOR.validate(trajectory)
    steps = trajectory["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert trajectory["final_metrics"]["total_steps"] == len(steps)
    for step in steps:
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": ()})["results"]:
            assert result.get("source_call_id") in {None, *calls}
