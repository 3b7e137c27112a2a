#!/usr/bin/env bash
# Prints every option of every command as Markdown: tools/options.sh build/hcache
set -euo pipefail
"$1" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | while read -r cmd; do
    "$1" "$cmd" --help=markdown
done
