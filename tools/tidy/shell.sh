# Shell and Python files parse.
bad=0 n=0
for f in $(git ls-files -co --exclude-standard '*.sh' .ci/run); do
    n=$((n + 1))
    bash -n "$f" || bad=1
done
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.py')
n=$((n + ${#scripts[@]}))
python3 - "${scripts[@]}" <<'EOF' || bad=1
import ast
import sys

bad = 0
for path in sys.argv[1:]:
    try:
        ast.parse(open(path, encoding="utf-8").read(), path)
    except SyntaxError as e:
        print(f"{path}:{e.lineno}: {e.msg}")
        bad = 1
sys.exit(bad)
EOF
[ $bad = 0 ] && echo "# $n files"
exit $bad
