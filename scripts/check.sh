#!/usr/bin/env bash
# Format, lint, types, layers, tests: exactly what CI runs.
#
#   scripts/check.sh                    check everything
#   scripts/check.sh --fix              format and repair what ruff can, then check everything
#   scripts/check.sh tests/losses -x    what is not --fix goes to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -d .venv ]]; then
    PATH="$PWD/.venv/bin:$PATH"
fi
export OMP_NUM_THREADS=1 # two workers share the cores; more threads are many times slower

if [[ ${1:-} == --fix ]]; then
    shift
    ruff format
    ruff check --fix || true # what cannot be repaired is reported below
fi

failed=()
check() {
    echo "── $*"
    "$@" || failed+=("[$*]")
}

check ruff format --check
check ruff check
check pyright
check lint-imports
if ((${#failed[@]})); then
    echo "── FAILED before the tests: ${failed[*]} (see above)"
fi

# The tests run in any case, and their summary is the last thing printed.
echo "── pytest"
pytest -n 2 --dist worksteal "$@" || failed+=(pytest)
exit $((${#failed[@]} > 0))
