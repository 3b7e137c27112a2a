# lib.sh - TAP and models for the shell tests of this folder; sourced, from the repository's root.
#
#   run_hc ARGS...            runs hcache; $rc, $out (stdout) and $err (stderr) are set
#   check NAME CONDITION...   prints ok or not ok; CONDITION is a command
#   expect NAME RC TEXT       checks $rc and that $err holds TEXT (a regular expression)
#   skip NAME REASON
#   plan_end                  prints the plan and sets the exit status: last line of every test

# Seconds after which a test gives up waiting for something (see tap.py).
PATIENCE=300
hc=$PWD/${HCACHE_BUILD:?is set by tools/run_tests.sh}/hcache
tmp=$(mktemp -d "${TMPDIR:-/tmp}/hcache-test.XXXXXX")
export XDG_STATE_HOME=$tmp/state  # not the user's own state
n_results=0 n_failed=0
cleanup() { rm -rf "$tmp"; }
trap cleanup EXIT

report() { # report "ok"|"not ok" NAME
    n_results=$((n_results + 1))
    echo "$1 $n_results - $2"
}
check() {
    local name=$1
    shift
    if "$@" >"$tmp/check.out" 2>&1; then
        report ok "$name"
    else
        report "not ok" "$name"
        n_failed=$((n_failed + 1))
        { echo "condition: $*"; cat "$tmp/check.out"; echo "status ${rc:-}; stderr: ${err:-}"; echo "stdout: ${out:-}"; } |
            head -c 2000 | sed 's/^/# /'
        echo  # the output may have been cut in the middle of a line
    fi
}
skip() { report ok "$1 # SKIP $2"; }
skip_all() {
    echo "1..0 # SKIP $1"
    exit 0
}
plan_end() {
    echo "1..$n_results"
    [ "$n_failed" -eq 0 ]
    exit
}

run_hc() {
    timeout "$PATIENCE" "$hc" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    out=$(tr -d '\0' <"$tmp/out") err=$(tr -d '\0' <"$tmp/err")
}
matches() { [ "$rc" -eq "$1" ] && grep -qiE -- "$2" "$tmp/err"; }
expect() { check "$1" matches "$2" "$3"; }
# json EXPRESSION: evaluates a Python expression over `j`, the JSON object that the last run
# printed.
json() { python3 -I -S -c "import json,sys; j=json.load(open(sys.argv[1])); v=$1; print(v if not isinstance(v, list) else ' '.join(map(str, v)))" "$tmp/out"; }
json_is() { [ "$(json "$1")" = "$2" ]; }

# port_of PID LOG: waits until a server that was started with --port 0 is ready, and prints its
# port. Prints nothing if the server has ended.
port_of() {
    local port= i
    for ((i = 0; i < PATIENCE * 10; i++)); do
        port=$(grep -oE 'ready at http://[^ ]*:[0-9]+' "$2" | grep -oE '[0-9]+$') && break
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    echo "$port"
}

# Makes a writable copy of a small trained model without a chat template (plain_model.py).
small_model() { # small_model DIR
    python3 tests/e2e/plain_model.py "$1"
}
# ids N SEED: prints N token ids below 500, the same ones for the same seed.
ids() { awk -v n="$1" -v s="$2" 'BEGIN { for (i = 0; i < n; i++) { s = (s * 1103515245 + 12345) % 2147483648; printf "%d ", 3 + int(s / 65536) % 490 } }'; }
