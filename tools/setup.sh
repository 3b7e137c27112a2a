#!/usr/bin/env bash
# Installs the distribution packages that are missing (Debian 12; root, or sudo).  Quiet and quick
# where nothing is missing.  --dev adds what only development needs.
set -euo pipefail

packages=(gcc make pkg-config git liburing-dev libsqlite3-dev libjansson-dev libpcre2-dev
          libutf8proc-dev libxxhash-dev libssl-dev libcmocka-dev python3)
dev=(clang clang-tidy clang-format libclang-rt-14-dev gcovr strace)

want=("${packages[@]}")
[ "${1:-}" = --dev ] && want+=("${dev[@]}")

missing=()
for p in "${want[@]}"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
    sudo=sudo
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
