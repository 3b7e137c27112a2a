#!/usr/bin/env bash
# Runs every test under tests/ and closes with one line: N passed, N failed, N skipped.
#   tools/run_tests.sh BUILD_DIR           runs what is built there
#   tools/run_tests.sh --build VARIANT     builds that variant first
# TESTS=REGEX limits which ("store|e2e"); TEST_TIMEOUT=SECONDS bounds each program (default 600, and
# twice that where a sanitizer or coverage slows every program down, six times for threads').
#
# C tests are cmocka programs; tests/e2e/test_*.sh and *.py print TAP themselves.  A program that
# crashes, times out, prints fewer results than its plan says, or prints none, is a failure.
# A skip prints its reason: cmocka tests print a line "skipped: reason" right before skip().
#
# A tool that a test or this script needs and that is missing is a failure, not a skip.
#
# A failure has to be understood from this output alone, on a machine that nobody can look at: it says
# what the machine is, how busy it was, why each result failed, and, of a program that hangs, what its
# threads wait for.  Whole outputs of programs that failed stay in BUILD_DIR/test-logs/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

pattern=${TESTS:-.}
passed=0 failed=0 skipped=0
slow=() bad_names=()

finish() { # the closing line, always the last
    [ ${#slow[@]} -gt 0 ] && echo "longest: $(printf '%s\n' "${slow[@]}" | sort -rn | head -5 | awk '{ printf "%s%s %d s", sep, $2, $1; sep = ", " }')"
    [ ${#bad_names[@]} -gt 0 ] && echo "failures in: ${bad_names[*]}"
    echo "whole run: $SECONDS s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

if [ "${1:-}" = --build ]; then
    build=build/$2
    jobs=-j$(nproc 2>/dev/null || echo 2)
    case ${MAKEFLAGS:-} in *-j*) jobs= ;; esac
    make --no-print-directory ${jobs:+"$jobs"} VARIANT="$2" all tests || {
        echo "the build failed"
        failed=1
        finish
    }
    echo "build: $SECONDS s"
else
    build=${1:?usage: run_tests.sh BUILD_DIR | --build VARIANT}
fi

case $build in
*/release | */debug) limit=${TEST_TIMEOUT:-600} ;;
*/tsan) limit=${TEST_TIMEOUT:-3600} ;;
*) limit=${TEST_TIMEOUT:-1200} ;;
esac

# A test's result must not depend on what the caller has configured.  HCACHE_SHARED says where the
# shared models are (default ../shared).
for v in "${!HCACHE_@}"; do [ "$v" = HCACHE_SHARED ] || unset "$v"; done
export HCACHE_BUILD=$build
export CMOCKA_MESSAGE_OUTPUT=TAP
# A race or a leak ends the program with a code of its own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
logs=$build/test-logs
rm -rf "$logs"
log=$(mktemp)
group=
trap 'rm -f "$log" "$log".*' EXIT
# Who ends the run ends the program under test, too.
trap '[ -n "$group" ] && kill -KILL -- "-$group" 2>/dev/null; exit 143' TERM INT HUP

# --- what is printed about the machine ------------------------------------------------------------

machine() {
    local tmp=${TMPDIR:-/tmp}
    echo "machine: $(nproc) of $(getconf _NPROCESSORS_ONLN) processors, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)," \
        "$(awk '/MemAvailable/ { printf "%d", $2 / 1024 }' /proc/meminfo) MiB free, user $(id -u), ulimit -n $(ulimit -Sn) of $(ulimit -Hn)"
    echo "machine: $tmp is $(stat -f -c %T "$tmp") with $(df -Pm "$tmp" | awk 'NR == 2 { print $4 }') MiB free," \
        "/dev/shm has $(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }') MiB; CPU quota $(cat /sys/fs/cgroup/cpu.max 2>/dev/null ||
            cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || echo unknown)"
}

# Load, and what tasks have waited for (10 s averages), where the kernel tells.
busyness() {
    echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(awk '/MemAvailable/ { printf "%d", $2 / 1024 }' /proc/meminfo) MiB free" \
        "$(for f in cpu io memory; do awk -v f=$f '/^some/ { printf "; waiting for %s %s", f, $2 }' /proc/pressure/$f 2>/dev/null; done)"
}

out_of_memory_kills() { awk '$1 == "oom_kill" { print $2 }' /proc/vmstat 2>/dev/null; }

# What the threads of a group of processes are doing, before the group is ended.
snapshot() { # snapshot GROUP
    local task p
    echo "still running when the time was over:"
    for p in $(ps -o pid= -o pgid= -A | awk -v g="$1" '$2 == g { print $1 }'); do
        echo "process $p: $(tr '\0' ' ' 2>/dev/null <"/proc/$p/cmdline" | cut -c1-200)"
        for task in /proc/"$p"/task/*; do
            echo "  $(cat "$task/comm"): $(awk '{ print $3 }' "$task/stat"), in $(cat "$task/wchan"), call $(cut -d' ' -f1 "$task/syscall")"
        done 2>/dev/null
        command -v gdb >/dev/null && timeout 20 gdb -p "$p" -batch -ex 'thread apply all bt 12' 2>/dev/null | grep -E '^(Thread|#)' | cut -c1-200
    done
}

# --- a program --------------------------------------------------------------------------------------

# Runs a command as a group of its own, so that what it leaves behind is ended with it; its status in $rc,
# the processes that it left in $left.
run_bounded() { # run_bounded COMMAND...
    local watch
    set -m
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    group=$!
    { sleep $((limit > 5 ? limit - 3 : 1)) && snapshot "$group" >"$log.hang"; } >/dev/null 2>&1 &
    watch=$!
    set +m
    { wait "$group"; } 2>/dev/null
    rc=$?
    kill -TERM -- "-$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    left=$(ps -o pgid= -o stat= -o args= -A | awk -v g="$group" '$1 == g && $2 !~ /Z/ { $1 = $2 = ""; print substr($0, 3, 150) }')
    [ -n "$left" ] && kill -KILL -- "-$group" 2>/dev/null
    group=
}

# How the program ended, where that is not told by its results.
ending() { # ending RC SECONDS OOM_KILLS_BEFORE
    local oom
    oom=$(out_of_memory_kills)
    if [ "$1" -eq 124 ] || { [ "$1" -eq 137 ] && [ "$2" -ge "$limit" ]; }; then
        echo "ran longer than $limit s; "
    elif [ "$1" -gt 128 ]; then
        echo "ended by SIG$(kill -l $(($1 - 128))); "
    fi
    [ "${oom:-0}" != "${3:-0}" ] && echo "the machine ran out of memory and killed something; "
}

# Each failure with the lines that say why, and the end of the output.
tell_failure() { # tell_failure NAME RC WHY
    mkdir -p "$logs" && cp "$log" "$logs/${1//\//.}.log"
    echo "    ${3}exit status $2; $(busyness)"
    awk '/^not ok / && !/# SKIP/ { if (++n > 20) exit; why = 12; print "    " $0; next } /^# / && why-- > 0 { print "      " $0; next }
        { why = 0 } /ERROR: / { print "    " $0 }' "$log"
    echo "    the last lines of $logs/${1//\//.}.log:"
    tail -40 "$log" | cut -c1-500 | sed 's/^/    | /'
    [ -s "$log.hang" ] && sed 's/^/    ? /' "$log.hang" | head -150
}

# Each skip as TAP writes it, "ok N - TEST # SKIP REASON".  cmocka 1.1.5 writes "not ok N # SKIP TEST", and the
# test has printed the reason in the line before.
show_skips() {
    awk '/^(ok .*|1\.\.0 )# SKIP/ { print "    " $0 }
        /^not ok .*# SKIP/ { n = $3; sub(/.*# SKIP */, ""); why = before; sub(/^(# *)?(SKIP|skip(ped)?): */, "", why)
            if (why == "" || why ~ /^(not )?ok |^1\.\./) why = "no reason was given"
            print "    ok " n " - " $0 " # SKIP " why }
        { before = $0 }' "$log" | head -20
}

run_one() { # run_one NAME COMMAND...
    local name=$1 start=$SECONDS rc left plan ok bad skip missing oom why=
    shift
    printf '%-40s' "$name" # now: who ends the whole run sees which program it was
    oom=$(out_of_memory_kills)
    rm -f "$log.hang"
    run_bounded "$@"
    # cmocka 1.1.5 prints a skipped test as "not ok N # SKIP name"; TAP says "ok N name # SKIP why",
    # and "1..0 # SKIP why" for a whole file.
    plan=$(grep -aoE '^1\.\.[0-9]+' "$log" | tail -1 | cut -c4-)
    skip=$(grep -acE '^(not )?ok .*# SKIP|^1\.\.0 # SKIP' "$log")
    ok=$(grep -aE '^ok ' "$log" | grep -vc '# SKIP')
    bad=$(grep -aE '^not ok ' "$log" | grep -vc '# SKIP')
    missing=$((${plan:-0} - ok - bad - skip))
    if [ "$missing" -gt 0 ]; then
        bad=$((bad + missing)) why="$missing of $plan results are missing; "
    elif [ $((ok + bad + skip)) -eq 0 ]; then
        bad=1 why="no results; "
    elif [ -z "$plan" ]; then
        bad=$((bad + 1)) why="it has not come to its end; "
    elif [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1 why="no result failed, but its status did; "
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    slow+=("$((SECONDS - start)) $name")
    printf ' %4d passed %3d failed %3d skipped %4d s\n' "$ok" "$bad" "$skip" $((SECONDS - start))
    [ -n "$left" ] && echo "    was left running, and ended now: ${left//$'\n'/; }"
    [ "$skip" -gt 0 ] && show_skips
    if [ "$bad" -gt 0 ]; then
        bad_names+=("$name")
        tell_failure "$name" "$rc" "$(ending "$rc" $((SECONDS - start)) "$oom")$why"
    fi
}

# Without these a test would look passed or skipped although nothing was checked: ps finds processes that a test
# has left, strace makes system calls fail, mkfs.ext4 makes a disk that breaks.
require_tools() {
    local tool missing=()
    for tool in awk grep mkfs.ext4 mount ps python3 setpriv strace timeout; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} -eq 0 ] && return
    echo "missing: ${missing[*]}. tools/setup.sh installs what the tests need."
    failed=$((failed + 1)) bad_names+=("tools")
}

machine
require_tools
for src in tests/*/test_*.c; do
    [ -e "$src" ] || continue
    name=${src#tests/} name=${name%.c}
    [[ $name =~ $pattern ]] || continue
    if [[ $name == *_emulated ]] && [ ! -e "$build/hcache_emulated" ]; then
        run_one "$name" echo "1..0 # SKIP no emulated GPU in this build: sanitizers do not follow its coroutines"
        continue
    fi
    run_one "$name" "$build/${src%.c}"
done
for script in tests/*/test_*.sh tests/*/test_*.py; do
    [ -e "$script" ] || continue
    name=${script#tests/}
    [[ $name =~ $pattern ]] || continue
    case $script in
    *.sh) run_one "$name" bash "$script" ;;
    *.py) run_one "$name" python3 "$script" ;;
    esac
done
finish
