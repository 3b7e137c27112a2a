# Every header can be included alone (except the kernels' templates, which are the bodies of files).
cc=$(command -v gcc || command -v clang) || { echo "no compiler"; exit 77; }
bad=0 n=0
for h in $(git ls-files 'src/*.h' 'include/*.h' 'apps/*.h' | grep -vE '^src/tensor/cpu/(kern|vec|transpose)_'); do
    [ -e "$h" ] || continue
    n=$((n + 1))
    "$cc" -std=c11 -D_GNU_SOURCE -I. -Isrc -Iinclude -Wall -Wextra -Werror -fsyntax-only -x c \
        -include "$h" /dev/null || bad=1
done
[ $bad = 0 ] && echo "# $n headers"
exit $bad
