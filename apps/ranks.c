/* ranks.c - see ranks.h. */
#include "apps/ranks.h"

#include <dirent.h>
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

/* The code of a child that could not become mpirun, and has said so. */
enum { NO_MPIRUN = 126 };

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
    _exit(NO_MPIRUN);
}

/* Returns the job's code. Says which signal ended the job, because mpirun's own message is ten
 * lines, and that mpirun has failed itself, because it is quiet (-q). */
static int code_of(int status, bool had_processes, int n)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == NO_MPIRUN)
        return 1;
    if (code == 255 || (code != 0 && !had_processes))
        fprintf(
            stderr,
            "hcache: mpirun could not start %d processes (code %d): \"mpirun -np %d true\" "
            "says why; look for a host file or a scheduler that names other machines\n",
            n, code, n);
    else if (code > 128)
        fprintf(stderr,
                "hcache: a process of the job was ended by signal %d (%s), and the others "
                "with it; what was committed to the store is there at the next start\n",
                code - 128, strsignal(code - 128));
    return code;
}

/* Returns the state of a process as a letter ('Z': it has ended); 0: there is none. */
static char state_of(int pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (f != NULL && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (f != NULL)
        fclose(f);
    return state;
}

/* Counts the processes that a process has started, and those of them that run. */
static void count_children(pid_t of, int *n, int *n_running)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", (int)of);
    DIR *tasks = opendir(path);
    *n = *n_running = 0;
    for (struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)of, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
        for (int pid; f != NULL && fscanf(f, "%d", &pid) == 1; ++*n)
            *n_running += state_of(pid) != 0 && state_of(pid) != 'Z';
        if (f != NULL)
            fclose(f);
    }
    if (tasks != NULL)
        closedir(tasks);
}

/* mpirun may hang when all of its processes have ended: PMIx 4.2.2 waits for a lock in memory that
 * it has freed (once in 78 kills). So this process looks each LOOK_NS, and ends an mpirun that had
 * processes and has none that runs, MOST_LOOKS times in a row. */
#define LOOK_NS    50000000
#define MOST_LOOKS 200

/* Waits for mpirun, and passes signals on. It ends its processes within a second of SIGTERM, but
 * passes PEERS_STOP on. Sets *had_processes to whether it has started any. Returns false if it has
 * hung and was killed. */
static bool await_mpirun(pid_t child, const sigset_t *set, int *status, bool *had_processes)
{
    int n_looks = 0;
    *had_processes = false;
    while (waitpid(child, status, WNOHANG) == 0) {
        int n, n_running,
            sig = sigtimedwait(set, NULL, &(struct timespec){.tv_nsec = LOOK_NS});
        if (sig > 0 && sig != SIGCHLD)
            (void)kill(child, PEERS_STOP);
        if (sig > 0)
            continue;
        count_children(child, &n, &n_running);
        *had_processes = *had_processes || n > 0;
        n_looks = *had_processes && n_running == 0 ? n_looks + 1 : 0;
        if (n_looks < MOST_LOOKS)
            continue;
        (void)kill(child, SIGKILL);
        (void)waitpid(child, status, 0);
        return false;
    }
    return true;
}

int ranks_run(int n, char **argv)
{
    struct err err = {0};
    sigset_t set, before;
    bool had_processes;
    int status;
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
    if (await_mpirun(child, &set, &status, &had_processes))
        return code_of(status, had_processes, n);
    fprintf(stderr,
            "hcache: mpirun did not end with its processes, and was killed; what was "
            "committed to the store is there at the next start\n");
    return 1;
}
