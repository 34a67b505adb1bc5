"""What cannot run in parts is refused before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Run, fails

PG, REDIS = "postgresql://127.0.0.1:1/none", "redis://127.0.0.1:1/1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("migrate {pg} {redis} --shard 1/2", "--shard and --shards cannot be combined"),
        ("migrate {pg} {redis} --shards 0", "must be 1 or more"),
        ("migrate {pg} {redis} --shards 4097", "must be 4096 or less"),
        ("migrate {pg} {redis} --workers 0", "must be 1 or more"),
        ("migrate {pg} {redis} --follow", "--follow cannot be combined with --shards"),
        ("export {pg} -o x.ndjson --rotate daily:7", "--rotate cannot be combined with --shards"),
        ("export {pg}", "stdout"),
        ("export - -o x-{{shard}}.ndjson", "named stores"),
        ("import - {redis}", "named stores"),
        ("migrate {pg} -", "named stores"),
        ("inspect {pg} --messages", "--messages cannot be combined with --shards"),
        ("migrate {pg} sqlite:///x.db", "one writer"),
        ("migrate {pg} x.ndjson", "one writer"),
        ("import a.ndjson x.json", "one writer"),
        ("migrate {pg} {redis} --on-conflict replace", "--yes"),
        ("migrate {pg} {redis} --since someday", "not a valid time"),
        ("migrate prod {redis}", "no store named 'prod'"),
        ("migrate {secret} {redis} --on ray", "has a password"),
        ("migrate {pg} redis://h/0?password=sesame --on ray", "has a password"),
        ("migrate sessions/ {redis} --on ray", "absolute paths"),
        ("export {pg} -o x-{{shard}}.ndjson --on ray", "absolute paths"),
        ("migrate {pg} {redis} --on moon", "moon"),
    ],
)
def test_refused_with_shards(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = PG.replace("127", "ops:sesame@127")
    made = words.format(pg=PG, redis=REDIS, secret=secret).split()
    shards = () if "--shards" in made else ("--shards", "3")
    result = run(*made, *shards)
    fails(result, 2, said, "hint:")
    assert "sesame" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--on=local", "--workers=2"])
def test_engine_without_shards_is_refused(run: Run, option: str) -> None:
    fails(run("inspect", PG, option), 2, "--shards")


@pytest.mark.parametrize("name", ["SHARD", "SHARDS"])
def test_division_is_no_default(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"MEMCTL_INSPECT_{name}", "1")
    fails(run("inspect", PG), 2, "command line only")
