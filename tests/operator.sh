#!/usr/bin/env bash
# Ten tasks of an operator, as typed into a shell; tests/test_operator.py runs them.
# Stores: prod (SQLite with session states), new (PostgreSQL), nightly (encrypted, in object storage).
set -euo pipefail

task() { printf '\n%s\n' "$*"; }

expect() { # CODE COMMAND...: the command ends with this exit code
    local code=$1 found=0
    shift
    "$@" || found=$?
    [[ $found == "$code" ]] || { printf 'exit code %s, not %s: %s\n' "$found" "$code" "$*"; exit 1; }
}

has() { # TEXT COMMAND...: the output of the command has this text
    local text=$1 said
    shift
    said=$("$@" 2>&1) || { printf '%s: %s\n' "$*" "$said"; exit 1; }
    [[ $said == *"$text"* ]] || { printf 'no "%s" in: %s\n' "$text" "$said"; exit 1; }
}

of() { # EXPRESSION: this part of the report on stdin
    python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}

messages() { # STORE OPTIONS...: the number of messages
    memctl inspect "$@" --json | of '["totals"]["messages"]'
}

task 1 An encrypted backup every night, and a session of three nights ago back
whole=$(messages prod --user ada --session kyoto)
for night in 1 2 3 4; do
    memctl -q export prod -o nightly --rotate last:9
    [[ $night != 1 ]] || memctl -q delete prod --user ada --session kyoto --keep-last 2 --yes
done
expect 6 memctl -q verify nightly@latest~3 prod >/dev/null
has 'comes back' memctl restore nightly@latest~3 prod --user ada --session kyoto --dry-run
memctl -q restore nightly@latest~3 prod --user ada --session kyoto --yes
[[ $(messages prod --user ada --session kyoto) == "$whole" ]]

task 2 Move to PostgreSQL while an agent writes
memctl migrate prod new --lossy --follow --interval 0.2 &
following=$!
for number in 1 2 3; do
    memctl -q import - prod --user ada --session "trip-$number" <said.json
done
for _ in {1..100}; do
    [[ $(messages new 2>/dev/null || true) != "$(messages prod)" ]] || break
done
kill -INT $following
wait $following
memctl -q verify prod new

task 3 Retention that leaves what is held
memctl -q hold add --store prod --user bob --reason 'case 17'
memctl -q retain --yes
[[ $(messages prod --user bob) != 0 ]]
[[ $(messages prod --session trip-1) == 0 ]]
memctl -q verify retired-*.ndjson.zst

task 4 Erase a person everywhere, with a receipt that can be checked
expect 9 memctl -q erase --user bob prod --yes
memctl -q hold remove "$(memctl hold list --json | of '["holds"][0]["id"]')" --yes
memctl -q erase --user bob prod new --archives nightly --receipt bob.html --yes
memctl -q verify --receipt bob.html
expect 4 memctl -q inspect nightly@latest --user bob

task 5 Search in Chinese
memctl -q import - prod --user li --session trip <chinese.json
has '京都' memctl search prod 京都 天气

task 6 Compress, but not more than one memory a run
has '1 memory' memctl compress prod --summarizer extractive --keep-recent 2 --max-memories 1

task 7 Upgrade to AgentScope 2.x with the summaries
memctl -q migrate prod 'sqlite:///upgraded.db?layout=agentscope2'
memctl -q verify prod upgraded.db
has 'summary' memctl context upgraded.db --user ada --session kyoto

task 8 Delete by mark from cron, which mails what is printed
memctl -q mark add prod hint --user ada --session kyoto --last 1
memctl -q delete prod --mark hint --yes >mail 2>&1
[[ ! -s mail ]]
expect 4 memctl -q delete gone.db --mark hint --yes >mail 2>&1
[[ $(wc -l <mail) == 2 ]]
memctl -q undo --store prod --yes

task 9 Completion
eval "$(memctl --show-completion bash)"
complete -p memctl >/dev/null

task 10 A service without a home that can be written
export HOME=/proc/none XDG_STATE_HOME= XDG_CACHE_HOME= XDG_CONFIG_HOME=
has '京都' memctl search prod 京都
expect 3 memctl -q delete prod --user li --yes
memctl -q delete prod --user li --yes --no-backup
[[ $(messages prod --user li) == 0 ]]
