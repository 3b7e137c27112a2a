# Whether the command is still to be typed; its subcommand; whether the command is this one.
function __hcache_begins
    test (count (commandline -opc)) -eq 1
end
function __hcache_needs
    set -l typed (commandline -opc)
    test (count $typed) -eq 2 -a "$typed[2]" = "$argv[1]"
end
function __hcache_is
    set -l typed (commandline -opc)
    test (count $typed) -gt (count $argv); or return 1
    test "$typed[2..$(math (count $argv) + 1)]" = "$argv"
end
