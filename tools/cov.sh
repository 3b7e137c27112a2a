#!/usr/bin/env bash
# Line coverage of what must not lose data, from the counters that `make cov` has just written.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=(src/store src/io)
if command -v gcovr >/dev/null; then
    exec gcovr --root . --object-directory build/cov "${folders[@]/#/--filter=}"
fi
# Without gcovr: gcov's own summary, a line per file.
for f in "${folders[@]}"; do
    find "build/cov/$f" -name '*.gcda' 2>/dev/null
done | sort | xargs -r gcov -n 2>/dev/null | awk -v q="'" '
    /^File / { split($0, part, q); file = part[2] }
    /^Lines executed:/ && file ~ /^src\/(store|io)\/.*\.c$/ {
        sub("Lines executed:", ""); split($0, n, "% of ")
        if (!(file in seen)) { seen[file] = 1; printf "%7.1f %% of %5d  %s\n", n[1], n[2], file
            hit += n[1] * n[2] / 100; all += n[2] }
    }
    END { if (all) printf "%7.1f %% of %5d  together\n", 100 * hit / all, all; else print "no counters" }'
