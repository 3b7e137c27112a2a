# clang-format decides (`make format`).
command -v clang-format >/dev/null || { echo "clang-format is not installed (tools/setup.sh --dev)"; exit 77; }
mapfile -t files < <(git ls-files '*.c' '*.h' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
bad=$(for f in "${files[@]}"; do clang-format --dry-run -Werror "$f" >/dev/null 2>&1 || echo "$f"; done)
[ -z "$bad" ] && { echo "# ${#files[@]} files"; exit 0; }
echo "not formatted (make format):"
echo "$bad"
exit 1
