# Pure code stays pure: the object files of the sources in tools/tidy/pure.txt call no function that
# touches files, sockets, clocks, threads, the environment or randomness, neither libc's nor
# our own.
forbidden='open|openat|open64|creat|fopen|fopen64|fdopen|freopen|read|pread|pread64|readv|write|pwrite|pwrite64|writev|fread|fwrite|fgets|fputs|fputc|puts|putchar|printf|vprintf|fprintf|vfprintf|mmap|mmap64|munmap|socket|connect|bind|listen|accept|accept4|send|sendto|sendmsg|recv|recvfrom|recvmsg|poll|select|clock_gettime|gettimeofday|time|nanosleep|usleep|sleep|getenv|rand|random|srand|exit|abort'
ours='(clock|queue|pool|file|log|progress|io|store|pthread|json_load_file|json_dump_file|uring|sqlite3)_.*|json_load_file|json_dump_file|json_load_fd|json_dumpfd'
make --no-print-directory VARIANT=release CUDA=0 B=build/tidy-gcc CC=gcc build/tidy-gcc/libhcache.a >/dev/null || exit 1
n=0 bad=0
for src in $(grep -v '^#' tools/tidy/pure.txt | while read -r p; do
    case $p in */) ls "$p"*.c ;; *) echo "$p" ;; esac
done); do
    o=build/tidy-gcc/${src%.c}.o
    [ -e "$o" ] || { echo "$src is in tools/tidy/pure.txt and has no object file"; bad=1; continue; }
    n=$((n + 1))
    calls=$(nm -u "$o" | awk '{print $2}' | sed 's/@.*//; s/^__\(.*\)_chk$/\1/' | grep -xE "$forbidden|$ours" | sort -u)
    # Formatting into memory (snprintf, open_memstream) is pure. Printing to a FILE is not.
    [ -n "$calls" ] && { echo "$src calls $(echo $calls)"; bad=1; }
done
[ $bad = 0 ] && echo "# $n object files"
exit $bad
