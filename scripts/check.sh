#!/usr/bin/env bash
# Checks format, lint rules, types and import layers, and runs the tests, exactly as CI does.
#
#   scripts/check.sh                    check everything
#   scripts/check.sh --fix              apply ruff's format and fixes, then check everything
#   scripts/check.sh tests/losses -x    pass all arguments but --fix to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -d .venv ]]; then
    PATH="$PWD/.venv/bin:$PATH"
fi
export OMP_NUM_THREADS=1 # two pytest workers share the cores; more threads slow both down

if [[ ${1:-} == --fix ]]; then
    shift
    ruff format
    ruff check --fix || true # what ruff cannot fix is reported below
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

# The tests run even if a check failed, and their summary is printed last.
echo "── pytest"
pytest -n 2 --dist worksteal "$@" || failed+=(pytest)
exit $((${#failed[@]} > 0))
