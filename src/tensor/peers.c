/* peers.c - see peers.h: loads hcache-mpi.so, and knows who has the processes. */
#include "tensor/peers.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensor/peers_plugin.h"
#include "tensor/plugin.h"

static const struct peers_plugin *plugin; /* set once */
static int n_processes = 1;

static int number_in(const char *variable)
{
    const char *n = getenv(variable);
    return n != NULL && strtol(n, NULL, 10) > 1 ? (int)strtol(n, NULL, 10) : 1;
}

bool peers_are_started(void)
{
    return number_in(PEERS_VARIABLE) > 1;
}

int peers_here(void)
{
    return number_in("OMPI_COMM_WORLD_LOCAL_SIZE");
}

static int load(const struct peers_plugin **p, struct err *err)
{
    char reason[512];
    *p = plugin_symbol("hcache-mpi.so", "hcache_peers_plugin",
                       "install libopenmpi-dev and openmpi-bin and run make", reason,
                       sizeof reason);
    if (*p == NULL)
        return err_set(err, ERR_UNSUPPORTED, "ranks and stages are processes of mpirun: %s",
                       reason);
    return (*p)->version == PEERS_PLUGIN_VERSION && (*p)->layout == PEERS_PLUGIN_LAYOUT
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "hcache-mpi.so is of another build of hcache: build it again");
}

int peers_check(struct err *err)
{
    const struct peers_plugin *p;
    return load(&p, err);
}

static void stop(int sig)
{
    (void)sig;
    (void)kill(getpid(), SIGTERM);
}

int peers_join(int *index, struct err *err)
{
    const struct peers_plugin *p;
    int rc = load(&p, err);
    if (rc != 0)
        return rc;
    /* The threads of MPI take no signals: a command chooses the thread that does. */
    sigset_t all, before;
    sigfillset(&all);
    (void)signal(PEERS_STOP, stop);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = p->join(index, &n_processes, err);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return rc;
    plugin = p;
    return *index > 0 || atexit(p->leave) == 0 ? 0 : err_set(err, -ENOMEM, "atexit");
}

int peers_serve(void)
{
    return plugin->serve();
}

const struct peers_plugin *peers(void)
{
    return plugin;
}

int peers_check_number(int n_ranks, int n_stages, struct err *err)
{
    int n = n_ranks * n_stages;
    if (n == 1 && n_processes <= 1)
        return 0;
    if (plugin == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "%d ranks and %d stages are %d processes, and this is one: the "
                       "command hcache starts them, and mpirun -np %d",
                       n_ranks, n_stages, n, n);
    return n == n_processes || n_processes == PEERS_ANY
               ? 0
               : err_set(err, ERR_USAGE,
                         "mpirun has started %d processes, but --tensor-parallel %d and "
                         "--pipeline-parallel %d need %d: choose mpirun -np %d",
                         n_processes, n_ranks, n_stages, n, n);
}

void peers_use(const struct peers_plugin *p, int n)
{
    plugin = p;
    n_processes = n;
}

struct io *peers_disks(struct io *own)
{
    return n_processes > 1 && plugin->disks != NULL ? plugin->disks(own) : own;
}

int peers_count(void)
{
    return n_processes;
}
