local previous=${words[CURRENT-1]} kind= option
if (( CURRENT == 2 )); then
    compadd -- $own_commands
    return
fi
# An option is "--NAME KIND CHOICE...".
for option in $own_options; do
    [[ ${option%% *} == $previous ]] && kind=${option#* }
done
case $kind in
choice*) compadd -- ${=kind#choice} ;;
file*) _files ;;
dir*) _files -/ ;;
value*) ;;
*)
    if (( CURRENT == 3 && $#subcommands )); then
        compadd -- $subcommands
    elif [[ ${words[CURRENT]} == -* ]]; then
        compadd -- ${own_options%% *}
    else
        _files
    fi
    ;;
esac
