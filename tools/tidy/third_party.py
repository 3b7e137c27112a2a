"""Checks that each third party's header appears in one place only; any other <header> must be the C
library's or the system's. A new dependency must be added here, so it is a deliberate decision."""
import re
import subprocess
import sys

# header (a pattern): where it may be included (a pattern), in how many files at most
PLACES = [
    (r"cuda.*|cublas.*|curand.*", r"cuda/.*", None),
    (r"ucontext\.h|deque|functional|map|memory|mutex|vector", r"sim/cuda_emu/.*", None),
    (r"ucontext\.h|sanitizer/.*", r"tests/restore/turns\.c", None),
    (r"liburing\.h", r"(src|tests)/io/[^/]*\.c", 2),
    (r"sqlite3(ext)?\.h", r"src/base/err_sqlite\.c|src/io/vfs\.c|src/store/index\.c|src/api/conversation[^/]*", None),
    (r"jansson\.h", r"src/base/json.*", None),
    (r"microhttpd\.h", r"src/server/.*", None),
    (r"pcre2\.h|utf8proc\.h", r"lib/bpe/.*token.*|src/api/items\.c|lib/grammar/regex\.c|tests/grammar/test_regex\.c", None),
    (r"xxhash\.h|xxh_x86dispatch\.h|openssl/.*|isa-l.*", r"src/base/hash\.c|lib/seal/seal\.c", None),
    (r"openssl/(err|ssl|x509v3)\.h", r"lib/redis/tls\.c", 1),
    (r"hiredis/.*", r"lib/redis/redis\.c", 1),
    (r"mpi\.h", r"mpi/.*", 1),
    (r"curl/curl\.h", r"bench/http_load\.c|apps/http_client\.c", 2),
    (r"histedit\.h", r"apps/line_reader\.c", 1),
    (r"cblas\.h|openblas.*", r"bench/.*", None),
    (r"cmocka\.h", r"tests/unit\.h", 1),
    (r"sqlite3\.h|jansson\.h", r"tests/.*", None),
]
SYSTEM = set("""
assert.h complex.h ctype.h dirent.h dlfcn.h elf.h endian.h errno.h fcntl.h fenv.h float.h ftw.h getopt.h glob.h
emmintrin.h immintrin.h inttypes.h cpuid.h libgen.h limits.h link.h locale.h malloc.h math.h netdb.h poll.h pthread.h pwd.h sched.h
semaphore.h setjmp.h signal.h spawn.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h
stdio.h stdlib.h stdnoreturn.h string.h strings.h termios.h time.h unistd.h wchar.h wctype.h x86intrin.h
linux/audit.h linux/filter.h linux/landlock.h linux/seccomp.h linux/fs.h linux/falloc.h linux/fiemap.h linux/futex.h linux/magic.h
sys/epoll.h sys/eventfd.h sys/file.h sys/ioctl.h sys/mman.h sys/mount.h sys/random.h sys/resource.h sys/select.h sys/socket.h
sys/stat.h sys/statfs.h sys/statvfs.h sys/syscall.h sys/sysinfo.h sys/sysmacros.h sys/time.h sys/types.h sys/uio.h sys/un.h
sys/auxv.h sys/prctl.h sys/utsname.h sys/vfs.h sys/wait.h sys/xattr.h arpa/inet.h netinet/in.h netinet/tcp.h hcache.h
""".split())
INCLUDE = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.M)

files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"],
                       capture_output=True, text=True, check=True).stdout.split()
bad, users = [], {}
for path in files:
    try:
        headers = INCLUDE.findall(open(path, encoding="utf-8").read())
    except FileNotFoundError:
        continue
    for header in headers:
        if header in SYSTEM:
            continue
        rules = [p for p in PLACES if re.fullmatch(p[0], header)]
        places = [p for p in rules if re.fullmatch(p[1], path)]
        if not rules:
            bad.append(f"{path}: <{header}> is unknown here (a new dependency belongs into tools/tidy/third_party.py)")
        elif not places:
            bad.append(f"{path}: <{header}> belongs into {' or '.join(p[1] for p in rules)}")
        elif places[0][2] is not None:
            users.setdefault((header, places[0][2]), []).append(path)
for (header, most), paths in users.items():
    if len(paths) > most:
        bad.append(f"<{header}> is included in {len(paths)} files, at most {most}: {', '.join(paths)}")
print("\n".join(bad) if bad else f"# {len(files)} files")
sys.exit(bool(bad))
