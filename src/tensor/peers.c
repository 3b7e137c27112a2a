/* peers.c - see peers.h: loads hcache-mpi.so, and knows who has the processes. */
#include "tensor/peers.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tensor/peers_plugin.h"
#include "tensor/plugin.h"

static const struct peers_plugin *plugin; /* set once */
static int n_processes = 1;
static atomic_bool are_taken; /* a group has the processes */

bool peers_are_started(void)
{
    const char *n = getenv("OMPI_COMM_WORLD_SIZE");
    return n != NULL && strtol(n, NULL, 10) > 1;
}

int peers_join(int *index, struct err *err)
{
    char reason[512];
    const struct peers_plugin *p = plugin_symbol(
        "hcache-mpi.so", "hcache_peers_plugin",
        "install libopenmpi-dev and openmpi-bin and run make", reason, sizeof reason);
    if (p == NULL)
        return err_set(err, ERR_UNSUPPORTED, "mpirun has started several processes: %s",
                       reason);
    if (p->version != PEERS_PLUGIN_VERSION || p->layout != PEERS_PLUGIN_LAYOUT)
        return err_set(err, ERR_UNSUPPORTED,
                       "hcache-mpi.so is of another build of hcache: build it again");
    int rc = p->join(index, &n_processes, err);
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

int peers_take(int n_ranks, int n_stages, struct err *err)
{
    int n = n_ranks * n_stages;
    if (n_processes == 1)
        return 0;
    if (n != n_processes)
        return err_set(err, ERR_USAGE,
                       "mpirun has started %d processes, but --tensor-parallel %d and "
                       "--pipeline-parallel %d need %d: choose mpirun -np %d",
                       n_processes, n_ranks, n_stages, n, n);
    if (atomic_exchange(&are_taken, true))
        return err_set(err, ERR_UNSUPPORTED,
                       "the processes of mpirun have a model: serve one model at a time");
    return 0;
}

void peers_give_back(void)
{
    atomic_store(&are_taken, false);
}

int peers_count(void)
{
    return n_processes;
}
