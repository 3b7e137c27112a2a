# Shell and Python files parse.
bad=0 n=0
for f in $(git ls-files -co --exclude-standard '*.sh' .ci/run); do
    n=$((n + 1))
    bash -n "$f" || bad=1
done
for f in $(git ls-files -co --exclude-standard '*.py'); do
    n=$((n + 1))
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1])' "$f" || bad=1
done
[ $bad = 0 ] && echo "# $n files"
exit $bad
