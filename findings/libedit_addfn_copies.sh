#!/usr/bin/env bash
# libedit 3.1-20221030 (Debian 12), through its multibyte interface (seen on 30 November 2026).
#
# el_set(EL_ADDFN) copies the name and the help of a function, and nothing ever frees the copies: not
# el_end, which frees everything else that was set (prompts, bindings, signals, the line). The wide
# interface el_wset copies nothing, so there the caller's texts must outlive the line editor. So a
# program that opens an editor per session loses two texts for each function, and the leak sanitizer
# ends it with status 1 although it has closed all that it opened. The stack shows wcsdup alone, unless
# the sanitizer unwinds slowly, since the library has no frame pointers.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
version=3.1-20221030-2
apt-get download -qq "libedit-dev=$version" "libedit2=$version"
for p in *.deb; do dpkg -x "$p" .; done
cat >x.c <<'C'
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

static unsigned char nothing(EditLine *e, int c)
{
    (void)e, (void)c;
    return CC_NORM;
}

static const char *prompt(EditLine *e)
{
    (void)e;
    return "> ";
}

int main(int argc, char **argv)
{
    (void)argv;
    FILE *null = fopen("/dev/null", "r+");
    EditLine *e = el_init("x", null, null, null);
    el_set(e, EL_PROMPT, prompt);
    el_set(e, EL_BIND, "^A", "ed-move-to-beg", NULL);
    if (argc == 2)
        el_set(e, EL_ADDFN, "first", "the first", nothing);
    if (argc == 3)
        el_wset(e, EL_ADDFN, L"first", L"the first", nothing);
    el_end(e);
    return fclose(null);
}
C
cc -fsanitize=address -Iusr/include -o x x.c usr/lib/x86_64-linux-gnu/libedit.so.2
export LD_LIBRARY_PATH=$PWD/usr/lib/x86_64-linux-gnu TERM=dumb
for how in "" "narrow" "wide names"; do
    # shellcheck disable=SC2086
    said=$(./x $how 2>&1) && leak=none || leak=$(grep -o 'SUMMARY.*' <<<"$said")
    echo "${how:-no function}: $leak"
    case $how in
    narrow) [[ $leak == *"64 byte(s) leaked in 2 allocation(s)"* ]] || { echo changed; exit 1; } ;;
    *) [ "$leak" = none ] || { echo changed; exit 1; } ;;
    esac
done
