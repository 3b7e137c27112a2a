/* api_pdf.c - /pdf-text: the text of a PDF, which the page attaches to a message.
 *
 * Poppler's pdftotext reads the file, because a PDF may be hostile: in a process of its own, with
 * bounds on time, memory and text. It can read files, but cannot change any, open sockets, signal
 * other processes, or start some. One runs at a time, so at most one text worker waits for it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "server/call.h"

enum { MAX_TEXT_BYTES = 1 << 20, MAX_SECONDS = 20, MAX_FILES = 32 };
#define MAX_MEMORY_BYTES ((rlim_t)1 << 30)
#define DEADLINE_NS      ((int64_t)MAX_SECONDS * 1000000000)

/* --- the other process ------------------------------------------------------------------------ */

#ifdef __x86_64__
#define OWN_ARCH AUDIT_ARCH_X86_64
#else
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (what))
#define REFUSE       RETURN(SECCOMP_RET_ERRNO | EPERM)
#define ALLOW(call)                                                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), RETURN(SECCOMP_RET_ALLOW)
/* Allows a call whose argument has none of the bits. */
#define ALLOW_WITHOUT(call, arg, bits)                                                     \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 4),                                 \
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[arg])),      \
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bits), 1, 0), RETURN(SECCOMP_RET_ALLOW),     \
        REFUSE

#define WRITING (O_ACCMODE | O_CREAT | O_TRUNC)
/* F_SETOWN sends signals. */
#define NO_OWNER (~(unsigned)(F_DUPFD_CLOEXEC | F_GETFL | F_SETFL))

/* Allows the calls that a program needs which reads files, computes and writes to open files. All
 * others are refused: sockets, processes, signals, and all changes of files and folders. */
static bool filter_calls(void)
{
    static const struct sock_filter code[] = {
        /* clang-format off */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | ENOTTY), /* no file is a terminal */
        ALLOW_WITHOUT(openat, 2, WRITING),
        ALLOW_WITHOUT(fcntl, 1, NO_OWNER),
        ALLOW_WITHOUT(prlimit64, 0, UINT_MAX), /* its own limits */
#ifdef __x86_64__
        ALLOW_WITHOUT(open, 1, WRITING),
        ALLOW(access), ALLOW(stat), ALLOW(lstat), ALLOW(readlink), ALLOW(dup2),
        ALLOW(time), ALLOW(arch_prctl), ALLOW(getrlimit),
#endif
        ALLOW(read), ALLOW(readv), ALLOW(pread64), ALLOW(write), ALLOW(writev), ALLOW(lseek),
        ALLOW(close), ALLOW(dup), ALLOW(dup3), ALLOW(fstat), ALLOW(newfstatat), ALLOW(statx),
        ALLOW(statfs), ALLOW(fstatfs), ALLOW(faccessat), ALLOW(faccessat2), ALLOW(readlinkat),
        ALLOW(getdents64), ALLOW(getcwd), ALLOW(fadvise64), ALLOW(mmap), ALLOW(munmap),
        ALLOW(mprotect), ALLOW(mremap), ALLOW(madvise), ALLOW(brk), ALLOW(futex),
        ALLOW(set_tid_address), ALLOW(set_robust_list), ALLOW(rseq), ALLOW(membarrier),
        ALLOW(rt_sigaction), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(sigaltstack),
        ALLOW(getpid), ALLOW(getppid), ALLOW(gettid), ALLOW(getuid), ALLOW(geteuid),
        ALLOW(getgid), ALLOW(getegid), ALLOW(uname), ALLOW(sysinfo), ALLOW(getrandom),
        ALLOW(clock_gettime), ALLOW(clock_getres), ALLOW(gettimeofday), ALLOW(times),
        ALLOW(getrusage), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(restart_syscall),
        ALLOW(sched_yield), ALLOW(sched_getaffinity), ALLOW(execve), ALLOW(exit),
        ALLOW(exit_group),
        /* clang-format on */
        REFUSE,
    };
    const struct sock_fprog program = {sizeof code / sizeof code[0],
                                       (struct sock_filter *)(uintptr_t)code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Enters a domain of Landlock, from which a process cannot read the memory of processes outside.
 * The domain must restrict some right: here that of writing files. A kernel without Landlock leaves
 * the memory of others to its ptrace_scope. */
static void enter_domain(void)
{
    const struct landlock_ruleset_attr a = {
        .handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE};
    long rules = syscall(SYS_landlock_create_ruleset, &a, sizeof a.handled_access_fs, 0);
    if (rules >= 0)
        (void)syscall(SYS_landlock_restrict_self, rules, 0);
}

static bool lock_up(void)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return false;
    enter_domain();
    return filter_calls();
}

static bool limit(int what, rlim_t most)
{
    const struct rlimit l = {most, most};
    return setrlimit((__rlimit_resource_t)what, &l) == 0;
}

/* Becomes pdftotext, which reads `in` and writes to `out`. The process shares the server's memory
 * until then (vfork), so this makes system calls alone. Returns if something failed. */
static void become(const char *program, int in, int out)
{
    char *const argv[] = {"pdftotext", "-q", "-enc", "UTF-8", "-", "-", NULL};
    char *const env[] = {"LANG=C", NULL};
    bool ok = dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
              syscall(SYS_close_range, STDERR_FILENO + 1, UINT_MAX, 0) == 0 &&
              limit(RLIMIT_AS, MAX_MEMORY_BYTES) && limit(RLIMIT_CPU, MAX_SECONDS) &&
              limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_NOFILE, MAX_FILES) &&
              limit(RLIMIT_CORE, 0) && lock_up();
    if (ok)
        execve(program, argv, env);
}

/* Returns the program's path, from malloc; NULL: it is not installed. */
static char *find_program(void)
{
    const char *at = getenv("PATH");
    while (at != NULL && *at != 0) {
        size_t n = strcspn(at, ":");
        char *path = xasprintf("%.*s/pdftotext", (int)n, at);
        if (n > 0 && access(path, X_OK) == 0)
            return path;
        free(path);
        at += n + (at[n] == ':');
    }
    return NULL;
}

static pid_t start(const char *program, int in, int out)
{
    pid_t pid = vfork();
    if (pid == 0) {
        become(program, in, out);
        _exit(126);
    }
    return pid;
}

/* --- its text --------------------------------------------------------------------------------- */

/* Reads up to the end, the deadline, or MAX_TEXT_BYTES and more. Returns whether it reached the
 * end. */
static bool read_text(int fd, int64_t until_ns, struct textbuf *out)
{
    char piece[1 << 14];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left_ms = (until_ns - clock_now_ns()) / 1000000;
        if (left_ms <= 0 || out->n > MAX_TEXT_BYTES)
            return false;
        if (poll(&p, 1, (int)left_ms) <= 0)
            continue;
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0)
            return true;
        if (n > 0 && !textbuf_try_add(out, piece, (size_t)n))
            return false;
    }
}

/* Waits for the process until the deadline, and then ends it. Returns whether it succeeded. */
static bool wait_for(pid_t pid, int64_t until_ns)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && clock_now_ns() < until_ns)
        nanosleep(&pause, NULL);
    if (got == 0) {
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int refuse(struct fault *f, const char *why)
{
    return fault_set(f, 400, "unreadable_file", NULL, "%s", why);
}

/* Returns 0 if the program has made a text, else -1 with the reason in *f. Size and time are
 * checked first: at their bounds the program is ended, so is_whole and succeeded are false, too. */
static int judge(const struct textbuf *text, bool is_whole, bool succeeded, bool in_time,
                 struct fault *f)
{
    bool has_letters = false;
    for (size_t i = 0; i < text->n && !has_letters; i++)
        has_letters = (unsigned char)text->p[i] > ' ';
    if (text->n > MAX_TEXT_BYTES)
        return refuse(f, "the PDF has more than 1 MiB of text");
    if (!in_time)
        return refuse(f, "the PDF takes longer than 20 s to read");
    if (!is_whole || !succeeded || utf8_check(text->p, text->n) != text->n)
        return refuse(f, "the file is no PDF that can be read: it may be damaged, need a "
                         "password, or need more than 1 GiB of memory");
    return has_letters
               ? 0
               : refuse(f, "the PDF has no text: its pages may be pictures of text");
}

/* Runs the program on a file in memory. */
static int extract(const char *program, int file, struct textbuf *text, struct fault *f)
{
    int ends[2];
    int64_t until_ns = clock_now_ns() + DEADLINE_NS;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return fault_refuse(f, -errno, NULL, "no pipe for pdftotext: %s", strerror(errno));
    pid_t pid = start(program, file, ends[1]);
    int code = errno;
    close(ends[1]);
    bool is_whole = pid > 0 && read_text(ends[0], until_ns, text);
    bool in_time = clock_now_ns() < until_ns;
    close(ends[0]);
    if (pid < 0)
        return fault_refuse(f, -code, NULL, "pdftotext cannot be started: %s",
                            strerror(code));
    bool succeeded = wait_for(pid, is_whole ? until_ns : 0);
    return judge(text, is_whole, succeeded, in_time, f);
}

static int text_of(const struct textbuf *pdf, struct textbuf *text, struct fault *f)
{
    char *program = find_program();
    int file = memfd_create("pdf", MFD_CLOEXEC), rc = 0;
    if (program == NULL)
        rc = fault_set(f, 501, "not_installed", NULL,
                       "this server cannot read PDFs: pdftotext is not installed "
                       "(poppler-utils)");
    else if (file < 0)
        rc = fault_refuse(f, -errno, NULL, "no memory for the file: %s", strerror(errno));
    int code = rc == 0 ? file_write_all(file, pdf->p, pdf->n, 0) : 0;
    if (code != 0)
        rc = fault_refuse(f, code, NULL, "no memory for the file: %s", strerror(-code));
    if (rc == 0)
        rc = extract(program, file, text, f);
    if (file >= 0)
        close(file);
    free(program);
    return rc;
}

void api_pdf(struct call *c)
{
    static atomic_flag is_busy = ATOMIC_FLAG_INIT;
    struct textbuf text = {0};
    struct fault f;
    if (atomic_flag_test_and_set(&is_busy)) {
        fault_set(&f, 429, "busy", NULL, "another PDF is being read; try again later");
        call_fault(c, &f);
        return;
    }
    int rc = text_of(&c->body, &text, &f);
    atomic_flag_clear(&is_busy);
    if (rc == 0) {
        while (text.n > 0 && (unsigned char)text.p[text.n - 1] <= ' ')
            text.n--;
        for (size_t i = 0; i < text.n; i++)
            if (text.p[i] == '\f')
                text.p[i] = '\n'; /* the end of a page */
        call_json(c, 200, json_make("{text: %p}", json_new_bytes(text.p, text.n)));
    } else {
        call_fault(c, &f);
    }
    textbuf_free(&text);
}
