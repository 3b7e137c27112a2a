#!/usr/bin/env bash
# Installs the distribution packages that are missing (Debian 12; root, or sudo).  Silent and quick
# where nothing is missing.
#   tools/setup.sh          what building, testing and the demo need
#   tools/setup.sh --clients   and .venv/ with the official clients that tests/e2e use, no more
#   tools/setup.sh --dev    and what only development needs (clang, coverage, tracing), and .venv/ with
#                           the official clients and the browser's driver that tests/e2e use
set -euo pipefail

packages=(gcc g++ make pkg-config git liburing-dev libsqlite3-dev libjansson-dev libpcre2-dev libmicrohttpd-dev libcurl4-openssl-dev
          libutf8proc-dev libxxhash-dev libssl-dev libcmocka-dev strace python3)
dev=(clang clang-tidy clang-format libclang-rt-14-dev cppcheck gcovr python3-venv chromium
     chromium-driver)

fail() { echo "setup: $*" >&2; exit 1; }

want=("${packages[@]}")
case ${1:-} in
'') ;;
--dev) want+=("${dev[@]}") ;;
--clients) want+=(python3-venv) ;;
*) fail "unknown argument \"$1\" (allowed: --dev, --clients)" ;;
esac

command -v dpkg-query >/dev/null || fail "this is no Debian: install by hand what Debian 12 calls: ${want[*]}"

missing=()
for p in "${want[@]}"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done

make_venv() {
    local want=("openai>=2.0" "anthropic>=0.70") modules='openai, anthropic'
    [ -n "${1:-}" ] || return 0
    [ "$1" = --clients ] || { want+=("selenium>=4.20") modules+=', selenium'; }
    .venv/bin/python -c "import $modules" 2>/dev/null && return 0
    echo "setup: making .venv"
    python3 -m venv .venv && .venv/bin/pip install -q "${want[@]}" || fail "could not make .venv"
}
cd "$(dirname "$0")/.."
if [ ${#missing[@]} -eq 0 ]; then
    make_venv "${1:-}"
    exit
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "needs root or sudo to install: ${missing[*]}"
    sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { # another apt may hold the lock, as on a machine that has just started
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq "$@" >"$log" 2>&1
}
# A failed update is not yet an end: the lists that are there may do.
apt update || echo "setup: apt-get update failed (no network?); trying with the lists that are here" >&2
if ! apt install -y --no-install-recommends "${missing[@]}"; then
    tail -15 "$log" >&2
    fail "could not install: ${missing[*]}
setup: is the network up, and has /etc/apt/sources.list the Debian 12 archive?  Packages that are
setup: installed in another way are found, too; then run the command again."
fi
make_venv "${1:-}"
