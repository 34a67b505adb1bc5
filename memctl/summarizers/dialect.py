"""What an OpenAI-compatible server takes: found out by asking, once a run."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from memctl.summarizers import prompts

Form = Literal["schema", "object", "text"]
FORMS: tuple[Form, ...] = ("schema", "object", "text")

# OpenAI: "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this
# model"; DeepSeek: "This response_format type is unavailable now"; DashScope: "Json mode response
# is not supported when enable_thinking is true"; LM Studio: "'response_format.type' must be
# 'json_schema'"; vLLM speaks of guided decoding, structured outputs and its grammars.
_ABOUT_FORM = re.compile(
    r"response_?format|json[_ ]?(schema|object|mode)|structured.?output|guided|grammar",
    re.IGNORECASE,
)
# OpenAI, reasoning models: "Unsupported parameter: 'max_tokens' is not supported with this model.
# Use 'max_completion_tokens' instead."
_OTHER_LIMIT = re.compile(r"max_completion_tokens")


class Spoken(NamedTuple):
    """How one request was put."""

    form: Form
    limit: str
    """The parameter that bounds the reply."""


class Dialect:
    """How requests are put; steps down where the server refuses, for the rest of the run."""

    def __init__(self, structured: str) -> None:
        """``structured`` is ``auto``, or the one form that is to be used."""
        self._auto = structured == "auto"
        form = next((form for form in FORMS if form == structured), FORMS[0])
        self.spoken = Spoken(form, "max_tokens")

    def parameters(self, reply: int) -> dict[str, Any]:
        """What a request says of its reply, which may have so many tokens."""
        parameters: dict[str, Any] = {self.spoken.limit: reply}
        if self.spoken.form == "schema":
            parameters["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "summary", "strict": True, "schema": prompts.schema()},
            }
        elif self.spoken.form == "object":
            parameters["response_format"] = {"type": "json_object"}
        return parameters

    def learn(self, spoken: Spoken, status: int, words: str) -> bool:
        """Whether a request that was put so, and refused, may be put otherwise now.

        Others under way may have been refused for the same: one step for all of them.
        """
        if status not in (400, 422):
            return False
        if _OTHER_LIMIT.search(words) and spoken.limit == "max_tokens":
            self.spoken = self.spoken._replace(limit="max_completion_tokens")
            return True
        if not self._auto or spoken.form == "text" or not _ABOUT_FORM.search(words):
            return False
        if self.spoken.form == spoken.form:
            following = FORMS[FORMS.index(spoken.form) + 1]
            self.spoken = self.spoken._replace(form=following)
        return True
