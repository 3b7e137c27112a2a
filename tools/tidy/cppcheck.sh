# A second opinion from cppcheck: errors and portability, no style.
command -v cppcheck >/dev/null || { echo "cppcheck is not installed (tools/setup.sh --dev)"; exit 77; }
mkdir -p build/tidy-cppcheck
# (cppcheck does not check for uninitialised variables here, because it takes every &local for a
# use; gcc and clang are better at it.) (invalidFunctionArg: memchr takes any char.) Only files that
# changed since the last run are checked again (--cppcheck-build-dir).
cppcheck --quiet --enable=warning,portability --inline-suppr --std=c11 --error-exitcode=1 \
    --cppcheck-build-dir=build/tidy-cppcheck -j2 -Isrc -Iinclude -I. -D_GNU_SOURCE -D__x86_64__ \
    --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=preprocessorErrorDirective \
    --suppress=internalAstError --suppress=syntaxError --suppress=invalidPointerCast \
    --suppress=uninitvar --suppress=ctuuninitvar --suppress=arrayIndexThenCheck --suppress=invalidFunctionArg \
    $(for d in src apps bench sim; do [ -d $d ] && echo $d; done) 2>&1 || exit 1
echo "# $(cppcheck --version)"
