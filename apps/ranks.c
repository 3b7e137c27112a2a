/* ranks.c - see ranks.h. */
#include "apps/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/option_tables.h"
#include "base/err.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "hcache.h"
#include "tensor/peers.h"

int ranks_wanted(int argc, char **argv)
{
    int n_words = 0, n;
    const struct opt_cmd *cmd = option_table_of(argc - 1, argv + 1, &n_words);
    if (cmd == NULL || strcmp(cmd->name, "plan") == 0 || getenv(PEERS_VARIABLE) != NULL)
        return 1;
    n = opt_product(cmd, argc - n_words, argv + n_words,
                    (const char *const[]){"tensor-parallel", "pipeline-parallel", NULL});
    return n <= HCACHE_MAX_DEVICES ? n : 1;
}

/* Becomes mpirun. It ends with this process, so that no rank is left behind. A terminal's Ctrl-C
 * must not reach it, because it would kill the ranks; only `run` reads from a terminal. */
static void become_mpirun(int n, char **argv, pid_t parent, const sigset_t *mask)
{
    char count[16], *self = realpath("/proc/self/exe", NULL);
    int n_args = 0, at = 0;
    while (argv[n_args] != NULL)
        n_args++;
    const char **to = xcalloc((size_t)n_args + 16, sizeof *to);
    snprintf(count, sizeof count, "%d", n);
    const char *const head[] = {"mpirun", "-q", "--oversubscribe", "--bind-to", "none",
                                "-np",    count};
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++)
        to[at++] = head[i];
    if (geteuid() == 0)
        to[at++] = "--allow-run-as-root";
    to[at++] = self != NULL ? self : argv[0];
    for (int i = 1; i < n_args; i++)
        to[at++] = argv[i];
    if (!isatty(STDIN_FILENO) || strcmp(argv[1], "run") != 0)
        (void)setpgid(0, 0);
    /* By default mpirun shares memory with its processes, with a lock in it. If one is killed while
     * it has that lock, mpirun never ends (Open MPI 4.1.4; once in 181 kills). */
    (void)setenv("PMIX_MCA_gds", "hash", 0);
    /* When a process has ended, mpirun waits twice so long before it kills the others, which ignore
     * SIGTERM. */
    (void)setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    if (getppid() == parent)
        (void)execvp(to[0], (char *const *)(uintptr_t)to);
    fprintf(stderr,
            "hcache: ranks and stages are processes that mpirun starts, and it cannot be "
            "run (%s): install openmpi-bin\n",
            strerror(errno));
    _exit(1);
}

/* Says which signal ended the job, because mpirun's own message is ten lines. */
static int code_of(int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code > 128)
        fprintf(stderr,
                "hcache: a process of the job was ended by signal %d (%s), and the others "
                "with it; what was committed to the store is there at the next start\n",
                code - 128, strsignal(code - 128));
    return code;
}

int ranks_run(int n, char **argv)
{
    struct err err = {0};
    sigset_t set, before;
    int status, sig;
    if (peers_check(&err) != 0) {
        fprintf(stderr, "hcache: %s\n", err.msg);
        return 1;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    pid_t self = getpid(), child = fork();
    if (child == 0)
        become_mpirun(n, argv, self, &before);
    if (child < 0) {
        fprintf(stderr, "hcache: no process for mpirun: %s\n", strerror(errno));
        return 1;
    }
    /* mpirun ends its processes within a second of SIGTERM, but passes PEERS_STOP on. */
    while (waitpid(child, &status, WNOHANG) == 0)
        if (sigwait(&set, &sig) == 0 && sig != SIGCHLD)
            (void)kill(child, PEERS_STOP);
    return code_of(status);
}
