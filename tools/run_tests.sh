#!/usr/bin/env bash
# Runs every test under tests/ and ends with one line: N passed, N failed, N skipped.
#   tools/run_tests.sh BUILD_DIR           runs the programs built there
#   tools/run_tests.sh --build VARIANT     builds that variant first
# TESTS=REGEX selects tests ("store|e2e").  TEST_TIMEOUT=SECONDS limits each program (default 600;
# twice that if a sanitizer or coverage slows every program down, six times for the thread
# sanitizer).  TEST_JOBS=N runs N programs side by side (default: three for two processors, since
# programs also wait).  A program whose source has a line with "run alone: REASON" runs after the
# others, with nothing beside it.
#
# C tests are cmocka programs; tests/e2e/test_*.sh and *.py print TAP themselves.  A program that
# crashes, times out, prints fewer results than its plan says, or prints none, is a failure.  A skip
# prints its reason: cmocka tests print a line "skipped: reason" right before skip().
#
# If a tool is missing that a test or this script needs, that is a failure and not a skip.
#
# It must be possible to understand a failure from this output alone, since nobody may be able to
# look at the machine.  The output says what the machine is, how busy it was, why each result failed
# and, for a program that hangs, what its threads wait for.  The whole outputs of failed programs
# stay in BUILD_DIR/test-logs/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

pattern=${TESTS:-.}
passed=0 failed=0 skipped=0
slow=() busy=() bad_names=()

# Prints the processor time, user and system, of all processes that a shell has waited for.
hz=$(getconf CLK_TCK)
processor_seconds() { # processor_seconds PID
    awk -v hz="$hz" '{ printf "%.1f", ($16 + $17) / hz }' "/proc/$1/stat"
}

# Prints the five largest of "NUMBER NAME".
largest() {
    printf '%s\n' "$@" | sort -rn | head -5 | awk '{ printf "%s%s %d s", sep, $2, $1; sep = ", " }'
}

finish() { # the closing line, which always comes last
    [ ${#slow[@]} -gt 0 ] && echo "longest: $(largest "${slow[@]}")"
    [ ${#busy[@]} -gt 0 ] && echo "most processor time: $(largest "${busy[@]}")"
    [ ${#bad_names[@]} -gt 0 ] && echo "failures in: ${bad_names[*]}"
    echo "whole run: $SECONDS s, processor time $(processor_seconds $$) s"
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
    echo "build: $SECONDS s, processor time $(processor_seconds $$) s"
else
    build=${1:?usage: run_tests.sh BUILD_DIR | --build VARIANT}
fi

case $build in
*/release | */debug) limit=${TEST_TIMEOUT:-600} ;;
*/tsan) limit=${TEST_TIMEOUT:-3600} ;;
*) limit=${TEST_TIMEOUT:-1200} ;;
esac

# A test's result must not depend on the caller's configuration.  HCACHE_SHARED says where the
# shared models are (default ../shared).
for v in "${!HCACHE_@}"; do [ "$v" = HCACHE_SHARED ] || unset "$v"; done
export HCACHE_BUILD=$build HCACHE_PLUGINS=$(realpath "$build")
# Copies in DRAM are off by default, because tests look at the files on the disk. A test of copies
# asks for them (--dram).
export HCACHE_DRAM=0
# Whether state is packed by default depends on the machine's speeds. A test of packing asks for it.
export HCACHE_PACK=off
export CMOCKA_MESSAGE_OUTPUT=TAP
# python3 may be a script that looks for an interpreter, which takes twice the interpreter's own
# time; tests start hundreds.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null) && PATH=${python%/*}:$PATH
# A race or a leak gives the program an exit code of its own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
logs=$build/test-logs
rm -rf "$logs"
tmp=$(mktemp -d)
group= watch=
# Ending the run also ends the programs under test. Each of them belongs to a subshell, which ends
# its process group.
stop() {
    trap - TERM INT HUP
    [ -n "$group" ] && kill -KILL -- "-$group" "-$watch" 2>/dev/null
    # shellcheck disable=SC2046
    kill -TERM $(jobs -p) 2>/dev/null
    exit 143
}
trap 'rm -rf "$tmp"' EXIT
trap stop TERM INT HUP

# --- what is printed about the machine ------------------------------------------------------------

machine() {
    local tmp=${TMPDIR:-/tmp}
    echo "machine: $(nproc) of $(getconf _NPROCESSORS_ONLN) processors, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)," \
        "$(awk '/MemAvailable/ { printf "%d", $2 / 1024 }' /proc/meminfo) MiB free, user $(id -u), ulimit -n $(ulimit -Sn) of $(ulimit -Hn)"
    echo "machine: $tmp is $(stat -f -c %T "$tmp") with $(df -Pm "$tmp" | awk 'NR == 2 { print $4 }') MiB free," \
        "/dev/shm has $(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }') MiB; CPU quota $(cat /sys/fs/cgroup/cpu.max 2>/dev/null ||
            cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || echo unknown)"
}

# Prints the load, and how long tasks have waited (10 s averages), if the kernel reports it.
busyness() {
    echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(awk '/MemAvailable/ { printf "%d", $2 / 1024 }' /proc/meminfo) MiB free" \
        "$(for f in cpu io memory; do awk -v f=$f '/^some/ { printf "; waiting for %s %s", f, $2 }' /proc/pressure/$f 2>/dev/null; done)"
}

out_of_memory_kills() { awk '$1 == "oom_kill" { print $2 }' /proc/vmstat 2>/dev/null; }

# Prints the state of the threads of a process group, before the group is killed.
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

# run_bounded COMMAND...: runs a command as a process group of its own, so that processes that it
# leaves are killed. Sets $rc to its status and $left to the processes that it left.
run_bounded() { # run_bounded COMMAND...
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

# Prints how the program ended, unless its results say so.
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

# Prints each failure with the lines that explain it, and the end of the output.
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

# Runs one program and prints its results.  Its counts go into $log.counts.
run_one() { # run_one NAME COMMAND...
    local name=$1 start=$SECONDS me=$BASHPID rc left plan ok bad skip missing oom cpu why=
    shift
    oom=$(out_of_memory_kills)
    rm -f "$log.hang"
    run_bounded "$@"
    # cmocka 1.1.5 prints a skipped test as "not ok N # SKIP name"; TAP says "ok N name # SKIP why",
    # and "1..0 # SKIP why" for a whole file.
    read -r plan ok bad skip < <(LC_ALL=C awk '/^1\.\.[0-9]+/ { plan = substr($1, 4) + 0; has_plan = 1 }
        /^(not )?ok .*# SKIP/ || /^1\.\.0 # SKIP/ { skip++; next }
        /^ok / { ok++ } /^not ok / { bad++ }
        END { print (has_plan ? plan : "none"), ok + 0, bad + 0, skip + 0 }' "$log")
    [ "$plan" = none ] && plan=
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
    cpu=$(processor_seconds "$me")
    echo "$ok $bad $skip $((SECONDS - start)) $cpu $name" >"$log.counts"
    printf '%-40s %4d passed %3d failed %3d skipped %4d s, processor time %5.1f s\n' "$name" "$ok" "$bad" "$skip" \
        $((SECONDS - start)) "$cpu"
    [ -n "$left" ] && echo "    was left running, and ended now: ${left//$'\n'/; }"
    [ "$skip" -gt 0 ] && show_skips
    [ "$bad" -eq 0 ] || tell_failure "$name" "$rc" "$(ending "$rc" $((SECONDS - start)) "$oom")$why"
}

# --- all programs -----------------------------------------------------------------------------------

# Programs also wait: for children, disks and pages.  Two programs side by side left two processors
# idle for a fifth of the time.
n_processors=$(nproc 2>/dev/null || echo 2)
max_jobs=${TEST_JOBS:-$((n_processors + (n_processors + 1) / 2))}
n_started=0 n_running=0
declare -A log_of  # maps each running subshell to its log

# Waits for one program and prints its output.
collect() {
    local pid ok bad skip seconds cpu name
    wait -n -p pid
    log=${log_of[$pid]}
    unset "log_of[$pid]"
    n_running=$((n_running - 1))
    cat "$log.said"
    read -r ok bad skip seconds cpu name <"$log.counts"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    slow+=("$seconds $name") busy+=("$cpu $name")
    [ "$bad" -eq 0 ] || bad_names+=("$name")
}

# Starts a program as soon as fewer than LIMIT run.
start_one() { # start_one LIMIT NAME COMMAND...
    local most=$1
    shift
    while [ "$n_running" -ge "$most" ]; do collect; done
    n_started=$((n_started + 1)) n_running=$((n_running + 1))
    log=$tmp/$n_started
    echo "0 1 0 0 0 $1" >"$log.counts" # counts for the case that the subshell is killed
    {
        trap stop TERM INT HUP  # a subshell does not inherit traps
        run_one "$@"
    } >"$log.said" 2>&1 &
    log_of[$!]=$log
}

wait_for_all() {
    while [ "$n_running" -gt 0 ]; do collect; done
}

# Prints the sources in tests/ that match the pattern.  Those whose programs take long come first,
# so that none of them runs alone at the end.
list_sources() {
    local src name
    for src in tests/engine/test_*_emulated.c tests/*/test_*_emulated.* tests/engine/test_* tests/e2e/test_* \
        tests/state/test_* tests/store/test_* tests/tensor/test_* tests/*/test_*; do
        case $src in *.c | *.sh | *.py) ;; *) continue ;; esac
        name=${src#tests/}
        [ -e "$src" ] && [[ ${name%.c} =~ $pattern ]] && echo "$src"
    done | awk '!seen[$0]++'
}

# Starts the program of a source in tests/.
start_source() { # start_source LIMIT SOURCE
    local name=${2#tests/}
    name=${name%.c}
    case $2 in
    *_emulated.c)
        if [ ! -e "$build/hcache_emulated" ]; then
            start_one "$1" "$name" echo "1..0 # SKIP no emulated GPU in this build: sanitizers do not follow its coroutines"
            return
        fi
        ;;&
    *.c) start_one "$1" "$name" "$build/${2%.c}" ;;
    *.sh) start_one "$1" "$name" bash "$2" ;;
    *.py) start_one "$1" "$name" python3 "$2" ;;
    esac
}

# Counts the assertions in the sources of the test programs.
count_assertions() {
    cat tests/*/*.c tests/*/*.sh tests/*/*.py | grep -cE '\<(assert_[a-z_]+|fail_msg|check|equal|raises)\(|^ *(check|expect) '
}

# Without these tools a test would seem to pass or be skipped although nothing was checked: ps finds
# processes that a test has left, strace makes system calls fail, mkfs.ext4 makes a disk that
# breaks.
require_tools() {
    local tool missing=()
    for tool in awk grep mkfs.ext4 mount ps python3 setpriv strace timeout; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} -eq 0 ] && return
    echo "missing: ${missing[*]}. tools/setup.sh installs the packages for the tests."
    failed=$((failed + 1)) bad_names+=("tools")
}

# The leak sanitizer stops a program's threads by ptrace at the program's end. If the system forbids
# ptrace, every test would fail.
probe_leaks() {
    local probe=$build/tests/base/test_utf8
    [ -x "$probe" ] || return
    if "$probe" 2>&1 | grep -q 'LeakSanitizer has encountered a fatal error'; then
        export LSAN_OPTIONS=detect_leaks=0
        echo "tests: leaks are not looked for, since ptrace is forbidden here"
    fi
}

machine
require_tools
probe_leaks
echo "tests: $(count_assertions) assertions in the sources, $max_jobs programs side by side"
alone=()
for src in $(list_sources); do
    if grep -q 'run alone: ' "$src"; then
        alone+=("$src")
    else
        start_source "$max_jobs" "$src"
    fi
done
wait_for_all
for src in "${alone[@]}"; do start_source 1 "$src"; done
wait_for_all
finish
