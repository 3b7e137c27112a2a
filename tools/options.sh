#!/usr/bin/env bash
# Every option of every command: tools/options.sh PROGRAM [--names]
# Markdown, or only the commands' names ("run", "model info"), a line each.
set -euo pipefail
hc=$1

for cmd in $("$hc" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    # A command with commands of its own says "usage: hcache model info ..." for each.
    subs=$("$hc" "$cmd" --help | sed -nE "s/^(usage:|      ) hcache $cmd ([a-z]+) .*/\2/p" | sort -u)
    for sub in $subs; do
        if [ "${2:-}" = --names ]; then
            echo "$cmd $sub"
        else
            "$hc" "$cmd" "$sub" --help=markdown
        fi
    done
    [ -n "$subs" ] && continue
    if [ "${2:-}" = --names ]; then echo "$cmd"; else "$hc" "$cmd" --help=markdown; fi
done
