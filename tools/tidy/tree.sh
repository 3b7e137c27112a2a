# Committed files are portable: no absolute paths of one machine, no white space at line ends, no
# tabs in C, no built files, no large files outside models/ and tests/.
bad=0
say() { echo "$1"; bad=1; }
hits=$(git grep -nIE '(^|[^A-Za-z0-9_.])/(wor[k]/(main|shared|wt|\.)|hom[e]/[a-z]|roo[t]/)' -- . ':!*.csv' | cut -c1-160)
[ -n "$hits" ] && say "absolute paths of a workplace:
$hits"
hits=$(git grep -nIE '[[:space:]]+$' -- '*.c' '*.h' '*.sh' '*.py' Makefile | cut -c1-120 | head)
[ -n "$hits" ] && say "white space at line ends:
$hits"
hits=$(git grep -nIP '\t' -- '*.c' '*.h' | cut -c1-120 | head)
[ -n "$hits" ] && say "tabs:
$hits"
hits=$(git ls-files | grep -E '\.(o|a|so|pyc|gcda|gcno)$|(^|/)(build|__pycache__)/')
[ -n "$hits" ] && say "built files are committed:
$hits"
while read -r f; do
    [ -f "$f" ] && [ "$(stat -c %s "$f")" -gt 1000000 ] && say "$f is larger than 1 MB"
done < <(git ls-files | grep -vE '^(models|tests)/')
for f in $(git ls-files 'tools/*.sh' .ci/run); do
    [ -e "$f" ] && [ ! -x "$f" ] && [[ $f != tools/tidy/* ]] && say "$f is not executable"
done
# Code that no GPU has run must not grow (cuda/untried/untried.h).
lines=$(cat cuda/untried/* | wc -l)
[ "$lines" -gt 688 ] && say "cuda/untried has $lines lines; 688 are allowed until a GPU has run it"
[ $bad = 0 ] && echo "# $(git ls-files | wc -l) files"
exit $bad
