#!/usr/bin/env bash
# Every option of every command: tools/options.sh PROGRAM [--names]
# Markdown, or only the commands' names ("run", "model info"), a line each.
set -euo pipefail
hc=$1

for cmd in $("$hc" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    # A command that has subcommands lists these (" info describes a model") and no options.
    help=$("$hc" "$cmd" --help)
    subs=
    grep -q '^options:' <<<"$help" || subs=$(sed -nE 's/^  ([a-z]+)  +[A-Za-z].*/\1/p' <<<"$help")
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
