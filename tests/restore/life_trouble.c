/* life_trouble.c - the troubles of a seeded life: see life_impl.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/restore/life_impl.h"
#include "tests/restore/turns.h"

/* Sets up a fault that begins after at most x.skip operations. */
static void fault(struct life *f, struct io_sim_fault x)
{
    x.skip = life_below(f, x.skip + 1);
    (void)io_sim_fault_add(f->io, &x);
}

void life_trouble_begin(struct life *f)
{
    const unsigned on_write = IO_SIM_ON_WRITE | IO_SIM_ON_SYNC | IO_SIM_ON_SPACE;
    uint64_t few = 1 + life_below(f, 4);
    if (life_has(f, LIFE_READ_FAIL))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                       .on = IO_SIM_ON_READ,
                                       .path = "seg",
                                       .skip = 100,
                                       .count = 1 + life_below(f, 12)});
    if (life_has(f, LIFE_LOSSY))
        fault(f,
              (struct io_sim_fault){
                  .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg", .chance = 0.1});
    if (life_has(f, LIFE_WRITE_FAIL))
        fault(f, (struct io_sim_fault){
                     .kind = IO_SIM_FAIL, .on = on_write, .skip = 150, .count = few});
    if (life_has(f, LIFE_FULL))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                       .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE,
                                       .skip = 150,
                                       .count = 1 + life_below(f, 60),
                                       .code = -ENOSPC});
    if (life_has(f, LIFE_STUCK))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_STUCK,
                                       .on = IO_SIM_ON_READ,
                                       .path = "seg",
                                       .skip = 60,
                                       .count = few});
    if (life_has(f, LIFE_HANG))
        fault(f,
              (struct io_sim_fault){
                  .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg", .skip = 60});
    if (life_has(f, LIFE_SHORT)) {
        fault(f, (struct io_sim_fault){.kind = IO_SIM_SHORT,
                                       .on = IO_SIM_ON_READ | IO_SIM_ON_WRITE,
                                       .path = "seg",
                                       .chance = 0.2});
        fault(f, (struct io_sim_fault){
                     .kind = IO_SIM_SLOW, .chance = 0.05, .slow_ns = 300000});
    }
    if (life_has(f, LIFE_CRASH))
        io_sim_crash_at(f->io, IO_SIM_AT_OP, 1 + life_below(f, 250));
}

void life_trouble_count(struct life *f)
{
    bool hit[LIFE_TROUBLES] = {
        [LIFE_READ_FAIL] = life_has(f, LIFE_READ_FAIL) && io_sim_fault_hits(f->io) > 0,
        [LIFE_WRITE_FAIL] = life_has(f, LIFE_WRITE_FAIL) && io_sim_fault_hits(f->io) > 0,
        [LIFE_STUCK] = life_has(f, LIFE_STUCK) &&
                       io_sim_fault_count(f->io, IO_SIM_STUCK, 0) > 0,
        [LIFE_HANG] = life_has(f, LIFE_HANG) &&
                      io_sim_fault_count(f->io, IO_SIM_STUCK, 0) > 0,
        [LIFE_FULL] = io_sim_fault_count(f->io, IO_SIM_FAIL, -ENOSPC) > 0,
        [LIFE_SHORT] = io_sim_fault_count(f->io, IO_SIM_SHORT, 0) > 0,
        [LIFE_CRASH] = io_sim_crashed(f->io),
        [LIFE_FLIP] = life_has(f, LIFE_FLIP),
        [LIFE_ERASE] = life_has(f, LIFE_ERASE),
        [LIFE_MEMORY] = life_has(f, LIFE_MEMORY),
    };
    for (int i = 0; i < LIFE_TROUBLES; i++)
        f->counts->n_trouble[i] += hit[i];
}

unsigned life_trouble_draw(struct rng *r)
{
    unsigned t = 0;
    if (rng_below(r, 4) == 0)
        return rng_below(r, 2) == 0 ? 0 : 1u << LIFE_SHORT;
    for (int n = 1 + (int)rng_below(r, 2); n > 0; n--)
        t |= 1u << rng_below(r, LIFE_MEMORY);
    return t;
}

void life_flip(struct life *f, struct rng *r)
{
    char path[64];
    struct io_names names = {0};
    struct io_stat st;
    const char *dir = rng_below(r, 2) == 0 ? "/store/a" : "/store/b";
    if (io_list(f->io, dir, &names, NULL) != 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names.name[i]);
        if (strncmp(names.name[i], "seg", 3) == 0 && io_stat(f->io, path, &st, NULL) == 0 &&
            st.size_bytes > 0)
            (void)io_sim_flip(f->io, path, rng_below(r, st.size_bytes),
                              (unsigned)rng_below(r, 8));
    }
    io_names_free(&names);
}

void *life_other_main(void *arg)
{
    struct life *f = arg;
    struct rng r = {.s = f->rng.s ^ 0x0743};
    struct saver_stats stats;
    uint64_t mark = 0;
    while (!f->quits) {
        switch (rng_below(&r, 6)) {
        case 0:
            (void)saver_flush(f->saver, NULL);
            break;
        case 1:
            mark = saver_mark(f->saver);
            break;
        case 2:
            (void)saver_reached(f->saver, mark);
            saver_stats(f->saver, &stats);
            break;
        case 3:
            if (life_has(f, LIFE_ERASE))
                life_erase(f, &r);
            break;
        case 4:
            if (life_has(f, LIFE_FLIP))
                life_flip(f, &r);
            break;
        default:
            if (life_has(f, LIFE_STUCK))
                io_sim_unstick(f->io);
            break;
        }
        clock_sleep_ns((int64_t)rng_below(&r, 3000000));
    }
    return NULL;
}
