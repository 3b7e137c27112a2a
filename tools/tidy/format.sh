# Checks the format with clang-format (`make format` corrects it).
command -v clang-format >/dev/null || { echo "clang-format is not installed (tools/setup.sh --dev)"; exit 77; }
mapfile -t files < <(git ls-files '*.c' '*.h' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if said=$(printf '%s\0' "${files[@]}" | xargs -0 -n 24 -P "$(nproc)" clang-format --dry-run -Werror 2>&1); then
    echo "# ${#files[@]} files"
    exit 0
fi
echo "not formatted (make format):"
echo "$said" | grep 'error: ' | cut -d: -f1 | sort -u
exit 1
