"""The structured summary of a conversation, and its text for the agent.  No I/O.

The fields, limits and template are those of AgentScope.  Source: ``SummarySchema`` and
``CompressionConfig`` in ``agent/_react_agent.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import re
from string import Formatter

from msgspec import Struct
from msgspec.structs import asdict

from memctl.errors import UsageError

LIMITS = {
    "task_overview": 300,
    "current_state": 300,
    "important_discoveries": 300,
    "next_steps": 200,
    "context_to_preserve": 300,
}
"""The fields in order, and the maximum number of characters of each."""

MEANINGS = {
    "task_overview": "the user's core request and success criteria, clarifications, constraints",
    "current_state": "what has been completed so far: files, key outputs, artifacts",
    "important_discoveries": "constraints uncovered, decisions and why, errors and how they were "
    "resolved, approaches that did not work",
    "next_steps": "specific actions that are left, blockers, open questions, in order of priority",
    "context_to_preserve": "the user's preferences, details that are not obvious, promises made",
}
"""The meaning of each field, for prompts."""

TEMPLATE = (
    "<system-info>Here is a summary of your previous work\n"
    "# Task Overview\n{task_overview}\n\n"
    "# Current State\n{current_state}\n\n"
    "# Important Discoveries\n{important_discoveries}\n\n"
    "# Next Steps\n{next_steps}\n\n"
    "# Context to Preserve\n{context_to_preserve}</system-info>"
)
_HEADINGS = re.sub("<[^>]*>(Here is.*\n)?", "", TEMPLATE)
_SECTION = r"(?m)^#+ .*\n\{{{name}\}}\n+(?=#)|\n*^#+ .*\n\{{{name}\}}(?=</|\n*\Z)"
"""The pattern of a heading in a template with nothing but the field ``name`` below."""
_FREE = "<system-info>Here is a summary of your previous work\n{text}</system-info>"

# AgentScope puts its own messages to agents in these tags; a summary must not imitate them.
_TAGS = re.compile(r"<(?=/?\s*system-)", re.IGNORECASE)


class Summary(Struct, frozen=True):
    """A summary in five fields of plain text."""

    task_overview: str
    current_state: str
    important_discoveries: str
    next_steps: str
    context_to_preserve: str

    def labelled(self) -> str:
        """Return the fields of the summary under headings, as input for the next summary.

        ``read_headings`` reads the text back.
        """
        return _HEADINGS.format_map(self._fields())

    def render(self, template: str = TEMPLATE) -> str:
        """Return the summary as the text that agents read in place of the summarized messages.

        Headings of empty fields are left out.
        """
        fields = self._fields()
        for name, value in fields.items():
            if not value:
                template = re.sub(_SECTION.format(name=name), "", template)
        return template.format_map(fields)

    def _fields(self) -> dict[str, str]:
        return {name: _harmless(value) for name, value in asdict(self).items()}


def read_headings(text: str) -> Summary | None:
    """Parse a text written by ``Summary.labelled``, or by ``render`` with AgentScope's template.

    The result is None without headings, or if they are in a different order.
    """
    places: list[tuple[str, int, int]] = []
    for literal, name, _, _ in Formatter().parse(_HEADINGS):
        heading = literal.strip()
        start = text.find(heading)
        if start >= 0 and places:
            start = text.find(heading, places[-1][2])
            if start < 0:
                return None
        if start >= 0 and name:
            places.append((name, start, start + len(heading)))
    if not places:
        return None
    ends = [start for _, start, _ in places[1:]] + [len(text)]
    values = dict.fromkeys(LIMITS, "") | {
        name: text[at:end].replace("</system-info>", "").strip()
        for (name, _, at), end in zip(places, ends, strict=True)
    }
    return Summary(**values)


def render_free(text: str) -> str:
    """Return a summary without fields as the text that agents read in place of the messages."""
    return _FREE.format(text=_harmless(text))


def check_template(template: str) -> str:
    """Return the template for the text of a summary, if it is valid; otherwise, raise an error.

    Raises:
        UsageError: the template is not valid for ``str.format``, or has a placeholder that is not
            a field of a summary.
    """
    hint = f"its fields are {', '.join('{' + name + '}' for name in LIMITS)}"
    try:
        places = [place[1:] for place in Formatter().parse(template) if place[1] is not None]
    except ValueError as error:
        raise UsageError(f"the template is not valid: {error}", hint) from error
    for name, spec, conversion in places:
        if name not in LIMITS:
            raise UsageError(
                f"the template names {name!r}, which is not a field of a summary", hint
            )
        if spec or conversion:
            # Without this check, rendering would fail after the summary was paid for.
            raise UsageError(f"the template has more than the name in {{{name}}}", hint)
    if not places:
        raise UsageError("the template has no placeholder for the summary", hint)
    return template


def _harmless(text: str) -> str:
    return _TAGS.sub("‹", text)
