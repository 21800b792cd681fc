#!/usr/bin/env bash
# Record a good run, learn from it, and check a run with a planted bug. Called by `make demo`.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-demo-output}"
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "1. Record a run that is known to be good: examples/train_digits.py (digits of scikit-learn)"
run traincheck-collect -o "$out/traces/good" -p "$here/train_digits.py"

say "2. Learn what it always does"
run traincheck-infer -t "$out/traces/good" -o "$out/invariant.json"

say "3. Record another program: examples/train_digits_buggy.py fine-tunes, its loss falls, no error"
run traincheck-collect -o "$out/traces/buggy" -p "$here/train_digits_buggy.py"

say "4. Check it"
status=0
run traincheck-check -t "$out/traces/buggy" -i "$out/invariant.json" || status=$?
if [ "$status" -ne 1 ]; then
  echo "the planted bug was not found (exit status $status)" >&2
  exit 1
fi
traincheck-check -t "$out/traces/buggy" -i "$out/invariant.json" --format json \
  --output "$out/report.json" || [ $? -eq 1 ]

say "Found: the head was replaced after the optimizer was built"
grep -n 'model.head = ' "$here/train_digits_buggy.py"
say "The files are in $out"
(cd "$out" && find . -type f | sort | xargs du -h)
