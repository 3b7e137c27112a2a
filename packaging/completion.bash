    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} kind values=
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$cur")
        return
    fi
    # An option is "--NAME KIND CHOICE...;" in words.
    kind=";$words"
    case $kind in
    *";$prev "*) kind=${kind#*";$prev "} kind=${kind%%;*} ;;
    *) kind= ;;
    esac
    case $kind in
    choice*) values=${kind#choice} ;;
    file*) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    dir*) mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
    value*) return ;;
    *)
        if [ "$COMP_CWORD" -eq 2 ] && [ -n "$subcommands" ]; then
            values=$subcommands
        elif [ "${cur#-}" != "$cur" ]; then
            values=$(tr ';' '\n' <<<"$words" | sed 's/ .*//')
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur")
}
complete -o filenames -F _hcache hcache
