#!/usr/bin/env bash
# Wall times of cold builds: this checkout against another commit, one after the other on an
# otherwise idle machine. Not part of CI.
#   tools/build_times.sh BASE [--tests]
# Prints seconds and the ratio to BASE for `cargo build --release`, for `cargo test --release`
# (with --tests), and the seconds of a rebuild after one file of src/cli was edited.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?usage: tools/build_times.sh BASE [--tests]}
work=$(mktemp -d)
git worktree add --quiet --detach "$work/base" "$base"
git worktree add --quiet --detach "$work/here" HEAD
trap 'for tree in base here; do git worktree remove --force "$work/$tree"; done; rm -rf "$work"' EXIT

seconds() { # seconds FOLDER COMMAND...: wall seconds of the command in the folder
  local start end folder=$1
  shift
  start=$(date +%s.%N)
  (cd "$folder" && "$@" > "$work/log" 2>&1) || { tail -30 "$work/log" >&2; exit 1; }
  end=$(date +%s.%N)
  echo "$end - $start" | bc
}

compare() { # compare LABEL COMMAND...: both trees from an empty target folder
  local label=$1 before after
  shift
  rm -rf "$work/base/target" "$work/here/target"
  before=$(seconds "$work/base" "$@")
  after=$(seconds "$work/here" "$@")
  printf '%-24s %8.1f s before, %8.1f s now, ratio %.2f\n' \
    "$label" "$before" "$after" "$(echo "$after / $before" | bc -l)"
}

(cd "$work/here" && cargo fetch --locked --quiet) && (cd "$work/base" && cargo fetch --locked --quiet)
if [ "${2:-}" = --tests ]; then compare "cargo test --release" cargo test --release; fi
compare "cargo build --release" cargo build --release
sed -i "s/not a report of layers/no report of layers/" "$work/here/src/cli/merge.rs"
printf '%-24s %8.1f s\n' "one file of src/cli" "$(seconds "$work/here" cargo build --release)"
