# No warnings with gcc: the whole tree, with the Makefile's flags.
command -v gcc >/dev/null || { echo "gcc is not installed (tools/setup.sh --dev)"; exit 77; }
make --no-print-directory -k -j2 VARIANT=release CUDA=0 B=build/tidy-gcc CC=gcc CFLAGS=-Werror all tests 2>&1 |
    grep -vE '^  (CC|LINK) '
[ "${PIPESTATUS[0]}" -eq 0 ] && echo "# $(gcc --version | head -1)"
