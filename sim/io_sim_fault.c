/* io_sim_fault.c - see io_sim_fault.h. */
#include "sim/io_sim_fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static unsigned default_on(enum io_sim_fault_kind kind)
{
    switch (kind) {
    case IO_SIM_SHORT:
    case IO_SIM_STUCK:
        return IO_SIM_ON_READ | IO_SIM_ON_WRITE;
    case IO_SIM_LOST:
    case IO_SIM_MISDIRECTED:
        return IO_SIM_ON_WRITE;
    case IO_SIM_READ_FLIP:
        return IO_SIM_ON_READ;
    case IO_SIM_SYNC_LIES:
        return IO_SIM_ON_SYNC;
    default:
        return IO_SIM_ON_ALL;
    }
}

int sim_faults_add(struct sim_faults *fs, const struct io_sim_fault *fault)
{
    if (fs->n == SIM_MAX_FAULTS)
        return ERR_LIMIT;
    struct io_sim_fault *r = &fs->rule[fs->n++];
    *r = *fault;
    if (r->on == 0)
        r->on = default_on(r->kind);
    if (r->kind == IO_SIM_FAIL && r->code == 0)
        r->code = -EIO;
    if (r->path != NULL)
        r->path = xstrdup(r->path);
    if (r->count == 0)
        r->count = UINT64_MAX;
    return 0;
}

void sim_faults_clear(struct sim_faults *fs)
{
    while (fs->n > 0)
        free((char *)(uintptr_t)fs->rule[--fs->n].path);
}

static bool hits(struct io_sim_fault *r, unsigned on, const char *path, struct rng *rng)
{
    if ((r->on & on) == 0 || r->count == 0)
        return false;
    if (r->path != NULL && strstr(path, r->path) == NULL)
        return false;
    if (r->skip > 0) {
        r->skip--;
        return false;
    }
    if (r->chance > 0 && rng_unit(rng) >= r->chance)
        return false;
    r->count--;
    return true;
}

static void count_hit(struct sim_faults *fs, const struct io_sim_fault *r)
{
    fs->n_hits++;
    fs->n_kind[r->kind]++;
    for (int i = 0; r->kind == IO_SIM_FAIL && i < IO_SIM_MAX_CODES; i++) {
        if (fs->fail[i].code != r->code && fs->fail[i].code != 0)
            continue;
        fs->fail[i].code = r->code;
        fs->fail[i].n++;
        return;
    }
}

const struct io_sim_fault *sim_faults_match(struct sim_faults *fs, unsigned on,
                                            const char *path, struct rng *rng)
{
    for (unsigned i = 0; i < fs->n; i++) {
        if (fs->rule[i].kind == IO_SIM_STUCK || !hits(&fs->rule[i], on, path, rng))
            continue;
        count_hit(fs, &fs->rule[i]);
        return &fs->rule[i];
    }
    return NULL;
}

bool sim_faults_stuck(struct sim_faults *fs, unsigned on, const char *path, struct rng *rng)
{
    for (unsigned i = 0; i < fs->n; i++)
        if (fs->rule[i].kind == IO_SIM_STUCK && hits(&fs->rule[i], on, path, rng)) {
            count_hit(fs, &fs->rule[i]);
            return true;
        }
    return false;
}

uint64_t sim_faults_count(const struct sim_faults *fs, enum io_sim_fault_kind kind,
                          int code)
{
    if (kind != IO_SIM_FAIL)
        return fs->n_kind[kind];
    for (int i = 0; i < IO_SIM_MAX_CODES; i++)
        if (fs->fail[i].code == code)
            return fs->fail[i].n;
    return 0;
}
