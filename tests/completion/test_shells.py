"""TAB in bash, zsh and fish."""

from __future__ import annotations

from typing import Any

import pytest

from tests.completion.conftest import ALONE, NAMES
from tests.completion.shells import Shell, need

STORE = "my store.ndjson"
TYPED = {
    "memctl insp\t": ["inspect"],
    "memctl export --as=arch\t": ["export", "--as=archive"],
    "memctl inspect pro\t": ["inspect", "prod-one"],
    "memctl inspect my\t": ["inspect", STORE],
    "memctl inspect @b\t": ["inspect", "@both"],
    "memctl inspect 'my store.ndjson' --user 'a i\t": ["inspect", STORE, "--user", NAMES[0]],
    'memctl inspect my\\ store.ndjson --user "c\t': ["inspect", STORE, "--user", NAMES[2]],
    "memctl inspect my\\ store.ndjson --user b:o\t": ["inspect", STORE, "--user", NAMES[1]],
    "memctl inspect my\\ store.ndjson --user=b\t": ["inspect", STORE, f"--user={NAMES[1]}"],
    "memctl inspect alone.ndjson --user \t": ["inspect", "alone.ndjson", "--user", ALONE],
}


@pytest.mark.slow
@pytest.mark.parametrize("typed", TYPED)
def test_completion_word_is_completed(shell: Shell, typed: str) -> None:
    assert shell.run(typed) == TYPED[typed]


@pytest.mark.slow
def test_completion_names_arrive_as_they_are(shell: Shell) -> None:
    words = " ".join(f"--user {name[0]}\t" for name in NAMES)
    expected = [word for name in NAMES for word in ("--user", name)]
    assert shell.run(f"memctl inspect my\\ store.ndjson {words}") == ["inspect", STORE, *expected]


@pytest.mark.parametrize(("ci", "how"), [("true", pytest.fail), ("", pytest.skip)])
def test_completion_shell_that_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, ci: str, how: Any
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(how.Exception, match="zsh is not installed: scripts/get-servers"):
        need("zsh")
