#!/usr/bin/env bash
# Import a sample agent's memory from a state_dict into SQLite; inspect, export, migrate, compare and compress it.
set -euo pipefail
cd "$(dirname "$0")"
demo=$(mktemp -d -t memctl-demo.XXXXXX)
export XDG_STATE_HOME=$demo/state  # keep the demo's undo records out of yours
export PAGER=cat  # run to the end without a key

run() {
    printf '\n\033[1m$ memctl %s\033[0m\n' "${*//$demo/DEMO}"
    memctl "$@"
}

mkdir "$demo/states"
store="sqlite:///$demo/agents.db?state=$demo/states"

run import friday.json "$store" --user ada --session kyoto
run inspect "$store"
run inspect "$store" --messages --last 5
run export "$store" --user ada --session kyoto -o "$demo/kyoto.json"
run export "$store" --as archive -o "$demo/nightly.ndjson.gz"
run migrate "$store" "$demo/moved.ndjson.zst"
run migrate "$demo/nightly.ndjson.gz" "$demo/sessions/"
run verify "$store" "$demo/moved.ndjson.zst"
run verify "$store" "$demo/sessions/"
run compress "$store" --keep-recent 2
run inspect "$store" --messages --exclude-mark compressed

printf '\nThe store stays in %s. Three things to try:\n\n' "$demo"
printf '  %s\n' "${MEMCTL:-memctl} inspect $demo/agents.db --messages" \
    "${MEMCTL:-memctl} delete $demo/agents.db --user ada --keep-last 2" \
    "${MEMCTL:-memctl} undo --store $demo/agents.db"
