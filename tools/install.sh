#!/usr/bin/env bash
# Installs the built files, or removes them:
#   tools/install.sh install BUILD_DIR        tools/install.sh uninstall BUILD_DIR
# PREFIX (default /usr/local) is where the program will run from; DESTDIR (default empty) is put in
# front of it.  PKGS and LIBS are the packages and libraries that the static library needs.
set -euo pipefail
cd "$(dirname "$0")/.."

action=$1 build=$2
prefix=${PREFIX:-/usr/local}
to=${DESTDIR:-}$prefix
hc=$build/hcache
version=$("$hc" --version | sed -n 's/^hcache \([0-9][0-9.]*\).*/\1/p')
date=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$hc")}" +%F) # the date on the man pages
soname=libhcache.so.${version%%.*}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Prints the files of an installation, one per line: MODE SOURCE TARGET; the mode `->` means a link.
files() {
    local page
    echo "755 $hc bin/hcache"
    echo "644 include/hcache.h include/hcache.h"
    [ ! -e "$build/hcache-mpi.so" ] || echo "755 $build/hcache-mpi.so lib/hcache/hcache-mpi.so"
    [ ! -e "$build/hcache-cuda.so" ] || echo "755 $build/hcache-cuda.so lib/hcache/hcache-cuda.so"
    echo "755 $build/libhcache.so lib/libhcache.so.$version"
    echo "-> libhcache.so.$version lib/$soname"
    echo "-> $soname lib/libhcache.so"
    echo "644 $build/static/libhcache.a lib/libhcache.a"
    echo "644 $tmp/hcache.pc lib/pkgconfig/hcache.pc"
    echo "644 $tmp/hcache.service lib/systemd/system/hcache.service"
    echo "644 $tmp/completion share/bash-completion/completions/hcache"
    echo "644 $tmp/completion.zsh share/zsh/site-functions/_hcache"
    echo "644 $tmp/completion.fish share/fish/vendor_completions.d/hcache.fish"
    for page in "$tmp"/*.1; do
        echo "644 $page share/man/man1/${page##*/}"
    done
}

fill() { # fill TEMPLATE
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" -e "s|@DATE@|$date|g" -e "s|@REQUIRES@|${PKGS:-}|" -e "s|@LIBS@|${LIBS:-}|" "$1"
}

# Man pages and completion are made from the option tables of the commands.
make_pages() {
    local name head
    head="\"$date\" \"hcache $version\" \"hcache\""
    tools/options.sh "$hc" --names >"$tmp/names"
    while read -r name; do
        # shellcheck disable=SC2086 # words
        "$hc" $name --help=man | sed "s/^\\(\\.TH .* 1\\) .*/\\1 $head/" >"$tmp/hcache-${name// /-}.1"
    done <"$tmp/names"
    make_completion >"$tmp/completion"
    make_completion_zsh >"$tmp/completion.zsh"
    make_completion_fish >"$tmp/completion.fish"
    "$hc" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/.TP\n\\fB\1\\fR\n\2/p' >"$tmp/commands"
    sed 's/ /-/g; s/.*/\\fBhcache-&\\fR(1)/' "$tmp/names" | paste -sd ',' | sed 's/,/, /g' >"$tmp/pages"
    fill packaging/hcache.1.in | sed -e "/@COMMANDS@/{r $tmp/commands" -e 'd}' -e "/@PAGES@/{r $tmp/pages" -e 'd}' \
        >"$tmp/hcache.1"
}

# Makes the function for bash: the commands, their subcommands and their options, followed by
# packaging/completion.bash.
make_completion() {
    local command name
    echo "# Completion of hcache $version for bash; tools/install.sh has written it."
    echo "_hcache() {"
    echo "    local commands=\"$(cut -d' ' -f1 "$tmp/names" | uniq | paste -sd ' ')\" subcommands= words="
    # shellcheck disable=SC2016 # for the shell that completes
    echo '    local command=${COMP_WORDS[1]-}
    case $command in'
    for command in $(sed -n 's/ .*//p' "$tmp/names" | sort | uniq -d) ; do
        echo "    $command) subcommands=\"$(sed -n "s/^$command //p" "$tmp/names" | paste -sd ' ')\""
        # shellcheck disable=SC2016
        echo '        command="$command ${COMP_WORDS[2]-}" ;;'
    done
    # shellcheck disable=SC2016
    echo '    esac
    case $command in'
    while read -r name; do
        # shellcheck disable=SC2086 # words
        echo "    \"$name\") words=\"$("$hc" $name --help=words | paste -sd ';');\" ;;"
    done <"$tmp/names"
    echo '    esac'
    cat packaging/completion.bash
}

commands() { cut -d' ' -f1 "$tmp/names" | uniq | paste -sd ' '; }
parents() { sed -n 's/ .*//p' "$tmp/names" | sort | uniq -d; } # commands that have subcommands
children() { sed -n "s/^$1 //p" "$tmp/names" | paste -sd ' '; }

# Makes the function for zsh: the same words in arrays, followed by packaging/completion.zsh.
make_completion_zsh() {
    local command name
    echo "#compdef hcache"
    echo "# Completion of hcache $version for zsh; tools/install.sh has written it."
    echo "local -a own_commands=($(commands) --help --version) subcommands=() own_options=()"
    # shellcheck disable=SC2016 # for the shell that completes
    echo 'local command=${words[2]-}
case $command in'
    for command in $(parents); do
        # shellcheck disable=SC2016
        echo "$command) subcommands=($(children "$command")); command=\"$command \${words[3]-}\" ;;"
    done
    # shellcheck disable=SC2016
    echo 'esac
case $command in'
    while read -r name; do
        # shellcheck disable=SC2086 # words
        echo "\"$name\") own_options=($("$hc" $name --help=words | sed "s/.*/'&'/" | paste -sd ' ')) ;;"
    done <"$tmp/names"
    echo 'esac'
    cat packaging/completion.zsh
}

# Makes the completion for fish: packaging/completion.fish, followed by a line for each command,
# subcommand and option.
make_completion_fish() {
    local command name option kind values
    echo "# Completion of hcache $version for fish; tools/install.sh has written it."
    cat packaging/completion.fish
    echo "complete -c hcache -n '__hcache_begins' -x -a '$(commands) --help --version'"
    for command in $(parents); do
        echo "complete -c hcache -n '__hcache_needs $command' -x -a '$(children "$command")'"
    done
    while read -r name; do
        # shellcheck disable=SC2086 # words
        "$hc" $name --help=words | while read -r option kind values; do
            case $kind in
            choice) kind="-x -a '$values'" ;;
            file) kind="-r -F" ;;
            dir) kind="-x -a '(__fish_complete_directories)'" ;;
            value) kind="-x" ;;
            *) kind= ;;
            esac
            echo "complete -c hcache -n '__hcache_is $name' -l ${option#--} $kind"
        done
    done <"$tmp/names"
}

make_pages
fill packaging/hcache.pc.in >"$tmp/hcache.pc"
fill packaging/hcache.service.in >"$tmp/hcache.service"

case $action in
install)
    files | while read -r mode from at; do
        if [ "$mode" = "->" ]; then
            ln -sfn "$from" "$to/$at"
        else
            install -D -m "$mode" "$from" "$to/$at"
        fi
    done
    [ -n "${DESTDIR:-}" ] || [ "$(id -u)" -ne 0 ] || ldconfig || true
    echo "installed hcache $version under $to"
    ;;
uninstall)
    files | while read -r _ _ at; do
        rm -f "$to/$at"
    done
    # Removes empty directories, too, except those that every system has.
    files | while read -r _ _ at; do
        folder=${at%/*}
        while :; do
            case $folder in bin | include | lib | share | share/man) break ;; esac
            rmdir "$to/$folder" 2>/dev/null || break
            folder=${folder%/*}
        done
    done
    echo "removed hcache $version from $to"
    ;;
*)
    echo "usage: tools/install.sh install|uninstall BUILD_DIR" >&2
    exit 2
    ;;
esac
