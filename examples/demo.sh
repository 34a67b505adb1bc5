#!/usr/bin/env bash
# Import a sample agent's memory from a state_dict into SQLite; inspect, compress, export, migrate, compare and chart it.
# Each command is printed as it can be pasted into a shell; memctl keeps the undo records in the folder of the demo.
set -euo pipefail
friday=$(cd "$(dirname "$0")" && pwd)/friday.json
demo=$(mktemp -d -t memctl-demo.XXXXXX)
export PAGER=cat  # run to the end without a key
export XDG_STATE_HOME=$demo/state

quoted() {
    local word
    for word; do
        [[ $word =~ ^[A-Za-z0-9_./:=+-]+$ ]] || word=${word@Q}
        printf ' %s' "$word"
    done
}

run() {
    printf '\n\033[1m$ memctl%s\033[0m\n' "$(quoted "$@")"
    memctl "$@"
}

# Where another shell finds the store, and memctl if `make demo` installed it: in DEMO_PATH.
begin=("cd$(quoted "$demo")" "export XDG_STATE_HOME=\$PWD/state")
[[ -z ${DEMO_PATH:-} ]] || begin+=("export PATH=$(printf %q "$DEMO_PATH"):\$PATH")

cd "$demo"
printf '\033[1m$ %s\033[0m\n' "${begin[@]}"
mkdir states
store="sqlite:///agents.db?state=states"

run import "$friday" "$store" --user ada --session kyoto --on-conflict skip
run inspect "$store"
run inspect "$store" --messages --last 5
run compress "$store" --keep-recent 2
run inspect "$store" --messages --exclude-mark compressed
run export "$store" --user ada --session kyoto -o kyoto.json --force
run export "$store" --as archive -o nightly.ndjson.gz --force
run migrate "$store" moved.ndjson.zst
run migrate nightly.ndjson.gz sessions/ --path memory
run verify "$store" moved.ndjson.zst
run verify "$store" sessions/
run report "$store" -o report.html --force

printf '\nThe page is %s/report.html: open it in a browser.\n' "$demo"
printf '\nThe store stays in %s. Three things to try:\n\n' "$demo"
printf '  %s\n' "${begin[@]}" \
    "memctl inspect agents.db --by user" \
    "memctl delete agents.db --user ada --keep-last 2" \
    "memctl undo --store agents.db"
