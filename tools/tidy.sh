#!/usr/bin/env bash
# Runs every check of the tree that a program can do. Prints one line per check. Exit status 1: a
# check failed.
#   tools/tidy.sh [NAME...]     NAME: a file of tools/tidy/ without its extension; none: all
#   tools/tidy.sh --quick       only the checks that compile nothing, which take seconds
# A check prints its findings and returns 1, or prints why it cannot run here and returns 77.
set -uo pipefail
cd "$(dirname "$0")/.."

[ "${1:-}" != --quick ] || set -- asserts budgets columns format layering names shell store_order third_party tree
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for check in tools/tidy/*.sh tools/tidy/*.py; do
    name=$(basename "$check")
    name=${name%.*}
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    start=$SECONDS
    case $check in
    *.py) python3 "$check" ;;
    *) bash "$check" ;;
    esac >"$out" 2>&1
    rc=$?
    summary=$(sed -n '1s/^# //p' "$out") # a check may print a summary as its first line, "# ..."
    case $rc in
    0) printf 'tidy %-12s ok    %s\n' "$name" "$summary" ;;
    77) printf 'tidy %-12s skip  %s\n' "$name" "$(head -1 "$out")" ;;
    *)
        printf 'tidy %-12s FAIL  (%d s)\n' "$name" $((SECONDS - start))
        sed 's/^/    /' "$out" | head -60
        failed=1
        ;;
    esac
done
exit $failed
