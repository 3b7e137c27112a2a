/* io_sim_fault.h - which operation of the simulated disk a fault hits; private to src/io. */
#ifndef SIM_IO_SIM_FAULT_H
#define SIM_IO_SIM_FAULT_H

#include "base/rng.h"
#include "sim/io_sim.h"

#define SIM_MAX_FAULTS 16

struct sim_faults {
    /* the rules' paths are copies that this struct owns */
    struct io_sim_fault rule[SIM_MAX_FAULTS];
    unsigned n;
    uint64_t n_hits;
    uint64_t n_kind[IO_SIM_FAULT_KINDS];
    struct {
        int code;
        uint64_t n;
    } fail[IO_SIM_MAX_CODES]; /* counts of IO_SIM_FAIL, by code */
};

int sim_faults_add(struct sim_faults *fs, const struct io_sim_fault *fault);
void sim_faults_clear(struct sim_faults *fs);

/* Returns the rule that hits this operation (one of IO_SIM_ON_), or NULL. Counts the hit. */
const struct io_sim_fault *sim_faults_match(struct sim_faults *fs, unsigned on,
                                            const char *path, struct rng *rng);
/* Returns whether a queued transfer gets stuck. Rules of that kind hit no other operation. */
bool sim_faults_stuck(struct sim_faults *fs, unsigned on, const char *path,
                      struct rng *rng);
uint64_t sim_faults_count(const struct sim_faults *fs, enum io_sim_fault_kind kind,
                          int code);

#endif
