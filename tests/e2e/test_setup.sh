# test_setup.sh - tools/setup.sh and make on a machine without their packages: their messages, and
# what they ask for.
#
# dpkg-query is replaced by a script that reports nothing as installed; apt-get and sudo are absent.
. tests/e2e/lib.sh

mkdir "$tmp/bin" "$tmp/home"
for tool in bash env dirname basename grep sed sha256sum mktemp mkdir rm cat python3 make; do
    ln -s "$(command -v $tool)" "$tmp/bin/$tool"
done
printf '#!/bin/bash\nexit 1\n' >"$tmp/bin/dpkg-query"
printf '#!/bin/bash\necho 1000\n' >"$tmp/bin/id"
chmod +x "$tmp/bin/dpkg-query" "$tmp/bin/id"

setup() {
    env -i PATH="$tmp/bin" HOME="$tmp/home" tools/setup.sh "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$? out=$(cat "$tmp/out") err=$(cat "$tmp/err")
}
setup
expect "without root it ends with status 1 and says who can go on" 1 'only root can install'
check "and prints one line for an administrator" test "$(grep -c 'apt-get install' "$tmp/err")" = 1
for package in gcc procps strace python3-venv libedit-dev; do
    check "the line has $package" grep -qE "apt-get update && apt-get install .* $package( |\$)" "$tmp/err"
done
check "it has no browser, which building and the demo do not need" bash -c "! grep -q chromium '$tmp/err'"

setup --list
check "--list prints the packages" test "$rc" = 0 -a "$(grep -cx -e gcc -e procps "$tmp/out")" = 2
check "--list installs nothing, and names no administrator" test -z "$err"
setup --tests
expect "an unknown argument is refused with the known ones" 1 '"--tests" \(allowed: --test, --cluster, --clients, --libraries, --dev, --real-model, --list\)'

# Chromium may fail to start: the tests of the page are then skipped, with its message.
mkdir "$tmp/false"
printf '#!/bin/bash\nexit 1\n' >"$tmp/false/chromium"
chmod +x "$tmp/false/chromium"
PATH=$tmp/false:$PATH timeout "$PATIENCE" python3 tests/e2e/test_page_foreign.py >"$tmp/out" 2>"$tmp/err" </dev/null
rc=$? out=$(cat "$tmp/out") err=$(cat "$tmp/err")
check "without a browser that starts, a test of the page says so and is skipped" test "$rc" = 0 -a \
    -n "$(grep -E '^1\.\.0 # SKIP (Chromium does not start here: |there is no (selenium|chromium))' "$tmp/out")"

# Runs make as on a machine without a compiler, in its own build directory.
env -i PATH="$tmp/bin" HOME="$tmp/home" make B="$tmp/build" CC=no-such-cc all >"$tmp/out" 2>"$tmp/err" </dev/null
rc=$? out=$(cat "$tmp/out") err=$(cat "$tmp/err")
expect "make without a compiler says what to run" 2 'the compiler or a library is missing: run tools/setup.sh'
check "and compiles nothing before" bash -c "! grep -q ' CC ' '$tmp/out'"
plan_end
