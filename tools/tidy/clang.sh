# No warnings with clang: the whole tree, with the Makefile's flags.
command -v clang >/dev/null || { echo "clang is not installed (tools/setup.sh --dev)"; exit 77; }
make --no-print-directory -k -j2 VARIANT=release CUDA=0 B=build/tidy-clang CC=clang CFLAGS=-Werror all tests 2>&1 |
    grep -vE '^  (CC|LINK) '
[ "${PIPESTATUS[0]}" -eq 0 ] && echo "# $(clang --version | head -1)"
