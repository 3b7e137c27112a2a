/* restore_lab.h - one context in a store that is restored again and again, for benchmarks of
 * restores.
 *
 * A lab is a running engine (stack.h). Its store holds one long context, which a real prefill has
 * saved with both kinds of records. The lab also has a restore pipeline of its own. So any prefix
 * of the context can be restored by any plan while nothing else runs. */
#ifndef BENCH_RESTORE_LAB_H
#define BENCH_RESTORE_LAB_H

#include "bench/device_rig.h"
#include "api/stack.h"
#include "restore/plan.h"
#include "store/chain.h"
#include "restore/profile.h"
#include "restore/restore.h"

struct lab_opts {
    struct hcache_opts engine;
    /* effort of measuring the platform, from which plans are made */
    enum profile_effort effort;
    int max_chunks; /* length of the context in chunks */
};

struct lab {
    struct stack k;
    /* the stack's platform, throttled and corrected, from which plans are made */
    struct platform platform;
    double throttle_bytes_per_s; /* of each process's disk; 0: the store is not throttled */
    struct plan_layer layer[STORE_MAX_LAYERS];
    /* limits of a device with memory of its own; zero for other devices */
    struct device_ceilings most;

    /* Private: */
    struct platform_tier tier; /* the store's own speed, without throttling */
    double io_overlap, comp_overlap;
    struct stream *stream;
    struct model_work *work;
    struct restore_pipeline *pipeline;
    struct kv_pool *pool;
    struct kv_table table;
    int32_t *tokens;
    int max_chunks, n_hits;
    /* [n_hits] hits of which lab_damage has hidden records; NULL: no record is hidden */
    struct store_hit *worn;
    struct plan_range *ranges;
    uint8_t *masks; /* [n_hits][n_layers] masks of the ranges */
    struct chain chain;
    struct store_hit *hits;
    uint8_t *copy; /* buffer for lab_read: reads go here (files), or copies (DRAM) */
    size_t copy_bytes;
    struct store_reader *reader;
};

/* Opens everything, prefills the context unless the store has it, and measures the store.  *b must
 * not move; call lab_close also after a failure. */
int lab_open(struct lab *b, const struct lab_opts *o, struct err *err);
void lab_close(struct lab *b);

/* Slows the store's reads, and tier 0 of the platform, to this speed; 0: full speed. */
void lab_throttle(struct lab *b, double bytes_per_s);

/* Computes the throttle at which C_H / IO_H of this machine (time of projecting hidden states over
 * that of reading them) equals that of a built-in platform with a model. The same plans are then
 * best, and speed-ups over other methods carry over. `as` is NAME or NAME:SHAPE
 * ("a100-1ssd:llama-2-13b"; llama-2-7b by default). *ratio gets C_H / IO_H. */
int lab_scale(const struct lab *b, const char *as, double *bytes_per_s, double *ratio,
              struct err *err);
/* Throttles the store as lab_scale computes. Restores from hidden states for a while and corrects
 * the platform by the measured times, twice. The platform then holds for long runs beside such
 * reads, as in an engine that has restored before. (The profile's samples are short and run alone:
 * sustained products beside reads were a fifth to a third slower.) Leaves the store throttled. Does
 * nothing if this store is too slow. */
int lab_settle_as(struct lab *b, const char *as, double *bytes_per_s, double *ratio,
                  struct err *err);

/* Hides records, as if they were damaged: runs of chunks lose one kind in some layers, as the seed
 * decides. Nothing on the disk changes. Seed 0 hides no record. */
void lab_damage(struct lab *b, uint64_t seed);

/* Makes a plan by any method of `hcache plan` for the first n_chunks chunks; *req gets its request.
 * If records are hidden, a single method uses the other kind in their place. Where auto would
 * prefill the last chunks, it recomputes everything instead. */
int lab_plan(struct lab *b, const char *method, int n_chunks, struct plan_request *req,
             struct plan *plan, struct err *err);
/* Makes one restore. Returns ERR_CORRUPT if it restored fewer chunks. */
int lab_restore(struct lab *b, int n_chunks, const struct plan *plan,
                struct restore_result *out, struct err *err);
/* Corrects the platform from a restore, as the engine does. */
void lab_learn(struct lab *b, const struct plan_request *req, const struct plan *plan,
               const struct restore_result *r);

/* Measures the limit of the I/O lane: reads the plan's records through the store, with nothing else
 * running. In DRAM reads give pointers, so all threads copy the records once instead. On a device
 * with memory of its own, records are also copied to the device, at most at the rate of pinned
 * copies; for DRAM only this copy is made. */
int lab_read(struct lab *b, int n_chunks, const struct plan *plan, int64_t *ns,
             struct err *err);

/* Returns a lower bound on the time of a restore by this plan, on a device with memory of its own:
 * the longer of its bytes at the rate of pinned copies and its products at the rate of a large one.
 * 0 on other devices. */
double lab_floor_s(const struct lab *b, int n_chunks, const struct plan *plan);

#endif
