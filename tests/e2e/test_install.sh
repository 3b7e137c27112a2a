# test_install.sh - make install and uninstall: the installed files, the exported symbols, and that
# the examples build against the installed copy and work.
. tests/e2e/lib.sh

build=${hc%/hcache}
[ "$(basename "$build")" = release ] || skip_all "the release program is what is installed"
to=$tmp/stage/opt/hc
# MAKE=true: everything is built already; the other lines of the target run unchanged.
install_with() { make --no-print-directory "$1" MAKE=true B="$build" PREFIX=/opt/hc DESTDIR="$tmp/stage" >"$tmp/out" 2>"$tmp/err"; }
check "make install" install_with install
version=$(sed -n 's/^#define HCACHE_VERSION "\(.*\)"/\1/p' include/hcache.h)
for file in bin/hcache include/hcache.h lib/libhcache.a "lib/libhcache.so.$version" lib/pkgconfig/hcache.pc \
    lib/systemd/system/hcache.service share/bash-completion/completions/hcache share/zsh/site-functions/_hcache \
    share/fish/vendor_completions.d/hcache.fish share/man/man1/hcache.1; do
    check "installed: $file" test -s "$to/$file"
done
check "the library's links lead to its version" test "$(readlink -f "$to/lib/libhcache.so")" = "$to/lib/libhcache.so.$version"
check "the installed program runs" test "$("$to/bin/hcache" --version | cut -d' ' -f2)" = "$version"
check "no file names the place of its staging" bash -c "! grep -rlI '$tmp' '$to'"

# --- what the libraries export ------------------------------------------------------------------------

# The functions that the header declares.
grep -oE '^[a-z].*\bhcache_[a-z_]+\(' include/hcache.h | grep -oE 'hcache_[a-z_]+\($' | tr -d '(' | sort -u >"$tmp/declared"
check "the header declares functions" test "$(wc -l <"$tmp/declared")" -ge 25
nm -D --defined-only "$to/lib/libhcache.so" | awk '{ print $3 }' | sort >"$tmp/shared"
check "the shared library exports what the header declares and nothing else" diff "$tmp/declared" "$tmp/shared"
nm --defined-only "$to/lib/libhcache.a" | awk '$2 ~ /[A-Z]/ { print $3 }' | sort >"$tmp/static"
check "so does the static one" diff "$tmp/declared" "$tmp/static"
check "it does not need the server's libraries" bash -c "! readelf -d '$to/lib/libhcache.so' | grep -E 'microhttpd|curl'"

# --- examples ---------------------------------------------------------------------------------------------

export PKG_CONFIG_PATH=$to/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=
pc() { pkg-config --define-variable=prefix="$to" "$@" hcache; }
check "pkg-config says the version" test "$(pc --modversion)" = "$version"
# shellcheck disable=SC2046 # words
build_examples() (
    mkdir -p "$tmp/examples" && cp -r examples/* "$tmp/examples" && cd "$tmp/examples" &&
        cc -std=c11 -Wall -Wextra -Werror -o chat_c chat.c $(pc --cflags --libs) &&
        c++ -std=c++17 -Wall -Wextra -Werror -o chat_cpp chat.cpp $(pc --cflags --libs) &&
        cc -std=c11 -static-libgcc -o chat_static chat.c $(pc --cflags) -Wl,-Bstatic $(pc --libs) -Wl,-Bdynamic \
            $(pc --libs --static | sed 's/-lhcache//')
)
check "the examples are built: C, C++, and C with the static library" build_examples
check "the static one needs no libhcache.so" bash -c "! readelf -d '$tmp/examples/chat_static' | grep -q hcache"
for example in chat_c chat_cpp chat_static; do
    printf 'My dog is called Biscuit and I say "hello" to him.\nWhat is my dog called?\n' |
        LD_LIBRARY_PATH=$to/lib timeout "$PATIENCE" "$tmp/examples/$example" models/demo "$tmp/$example.store" >"$tmp/out" 2>"$tmp/err"
    rc=$? err=$(cat "$tmp/err")
    check "$example answers from what was told" test "$rc" -eq 0 -a -n "$(grep '^Your dog is called Biscuit\.' "$tmp/out")"
done
"$to/bin/hcache" serve models/demo --port 0 >"$tmp/serve.log" 2>&1 &
server=$!
port=$(port_of "$server" "$tmp/serve.log")
printf 'My dog is called Biscuit.\nWhat is my dog called?\n' | python3 examples/client.py "http://127.0.0.1:$port" >"$tmp/out" 2>"$tmp/err"
rc=$? err=$(cat "$tmp/err")
check "client.py answers from what was told" test "$rc" -eq 0 -a "$(tail -1 "$tmp/out")" = "Your dog is called Biscuit."
kill "$server" && wait "$server"

# --- pages and completion -----------------------------------------------------------------------------------

# Prints the options that a command's page lacks; there must be none.
lacking() { # lacking NAME...
    local page="$*"
    page=$to/share/man/man1/hcache-${page// /-}.1
    [ -s "$page" ] || echo "no page"
    comm -23 <("$hc" "$@" --help=words | grep -oE '^--[a-z0-9-]+' | sort) \
        <(sed 's/\\-/-/g' "$page" | grep -oE '[-]-[a-z0-9-]+' | sort -u)
}
while read -r name; do
    # shellcheck disable=SC2086 # words
    check "the page of $name has each of its options" test -z "$(lacking $name)"
done < <(tools/options.sh "$hc" --names)
check "each page has a date and the version" test -z \
    "$(grep -LE "^\.TH \"hcache[a-z-]*\" 1 \"[0-9]{4}-[0-9]{2}-[0-9]{2}\" \"hcache $version\" \"hcache\"$" "$to"/share/man/man1/*.1)"
check "the main page lists the commands" grep -q 'fBserve' "$to/share/man/man1/hcache.1"
complete_words() { # complete_words WORD... : the completions that bash offers for the last word
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hcache; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$to/share/bash-completion/completions/hcache" "$@"
}
offers() { complete_words "${@:2}" | grep -qxF -- "$1"; }
check "completion: commands" offers serve hcache ser
check "completion: subcommands" offers kernels hcache bench k
check "completion: options" offers --max-tokens hcache run --max-t
check "completion: options of a subcommand" offers --shape hcache model synth --sh
check "completion: choices" offers cpu hcache run --device c
check "completion: the options of one command are not those of another" test -z "$(complete_words hcache tokenize --max-t)"

# The shells zsh and fish are run if they are installed. The files are checked for every option in any
# case.
zsh_file=$to/share/zsh/site-functions/_hcache fish_file=$to/share/fish/vendor_completions.d/hcache.fish
lacking_words() { # lacking_words NAME...
    "$hc" "$@" --help=words | cut -d' ' -f1 | sort -u >"$tmp/words"
    grep -F "\"$*\")" "$zsh_file" | grep -oE -- "'--[a-z0-9-]+ " | tr -d "' " | sort -u | comm -23 "$tmp/words" -
    grep -oE -- "__hcache_is $*' -l [a-z0-9-]+ " "$fish_file" | sed "s/.* -l /--/; s/ $//" | sort -u | comm -23 "$tmp/words" -
}
while read -r name; do
    # shellcheck disable=SC2086 # words
    check "completion of $name for zsh and fish has each of its options" test -z "$(lacking_words $name)"
done < <(tools/options.sh "$hc" --names)
zsh_offers() { # zsh_offers WORD WORD... : whether zsh is offered the word for the last one
    zsh -f -c 'compadd() { shift; print -rl -- "$@" }; _files() { print FILES }; file=$1; shift
               complete_it() { local -a words=("$@"); local CURRENT=$#; source $file }; complete_it "$@"' - "$zsh_file" "${@:2}" |
        grep -qxF -- "$1"
}
fish_offers() { fish --no-config -c "source $fish_file; complete -C '${*:2}'" | cut -f1 | grep -qxF -- "$1"; }
for shell in zsh fish; do
    command -v $shell >"$tmp/out" || continue
    check "$shell completes commands" ${shell}_offers serve hcache ser
    check "$shell completes subcommands" ${shell}_offers kernels hcache bench k
    check "$shell completes options" ${shell}_offers --max-tokens hcache run --max-t
    check "$shell completes options of a subcommand" ${shell}_offers --shape hcache model synth --sh
    check "$shell completes choices" ${shell}_offers cpu hcache run --device c
done

# --- the unit -----------------------------------------------------------------------------------------------------

unit=$to/lib/systemd/system/hcache.service
if command -v systemd-analyze >"$tmp/out"; then
    sed "s|/opt/hc/|$to/|" "$unit" >"$tmp/hcache.service"
    check "systemd finds no fault in the unit" bash -c "test -z \"\$(systemd-analyze verify --man=no '$tmp/hcache.service' 2>&1 | grep hcache)\""
    # systemd's exposure, 0 to 10, in tenths: 8.4 without the restrictions, 1.9 with them
    check "the unit may do little" systemd-analyze security --offline=yes --threshold=20 "$tmp/hcache.service"
fi
# The image's command, with the key that its comment tells to give, and without.
image=$(sed -n 's/^\(ENTRYPOINT\|CMD\) //p' packaging/Containerfile | tr -d '[]",' | tr '\n' ' ' |
    sed "s|^hcache|$hc|; s|/var/lib/hcache/models/default|models/demo|; s|/var/lib/hcache/store|$tmp/image-state|")
run_image() {
    # shellcheck disable=SC2086 # words
    env "$(sed -n 's/.*-e \(HCACHE_[A-Z_]*=KEY\).*/\1/p' packaging/Containerfile)" $image --port 0 >"$tmp/image.log" 2>&1 &
    server=$!
    [ -n "$(port_of "$server" "$tmp/image.log")" ] && kill "$server" && wait "$server"
}
check "the image's command starts a server with a key" run_image
check "and none without" test "$($image --port 0 2>&1 | grep -c "give --api-key-file")" = 1
# The unit's command with its variables, as systemd would run it.
run_unit() {
    local words
    words=$(sed -n 's/^ExecStart=//p' "$unit" | sed "s|/opt/hc/|$to/|; s|\${MODEL}|models/demo|; s|\${STATE_DIRECTORY}|$tmp/unit-state|")
    # shellcheck disable=SC2086 # words
    HCACHE_PORT=0 $words >"$tmp/unit.log" 2>&1 &
    server=$!
    [ -n "$(port_of "$server" "$tmp/unit.log")" ] && kill "$server" && wait "$server"
}
check "the unit's command starts a server that ends in order" run_unit

# --- and gone ---------------------------------------------------------------------------------------------------

check "make uninstall" install_with uninstall
check "no file is left" test -z "$(find "$tmp/stage" -type f -o -type l)"
check "and no folder but those that a system has" test -z "$(cd "$to" && find . -mindepth 1 -type d |
    grep -vxE './(bin|include|lib|share|share/man)')"
plan_end
