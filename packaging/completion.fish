# Succeeds if no command has been typed yet.
function __hcache_begins
    test (count (commandline -opc)) -eq 1
end
# Succeeds if this command has been typed, and no subcommand yet.
function __hcache_needs
    set -l typed (commandline -opc)
    test (count $typed) -eq 2 -a "$typed[2]" = "$argv[1]"
end
# Succeeds if the typed line begins with this command and, if given, this subcommand.
function __hcache_is
    set -l typed (commandline -opc)
    test (count $typed) -gt (count $argv); or return 1
    test "$typed[2..$(math (count $argv) + 1)]" = "$argv"
end
