/* restore_lab.h - one context in a store, to be restored again and again: what the benchmarks of
 * restores stand on.
 *
 * A lab is a running engine (stack.h) whose store holds one long context, saved by a real
 * prefill with both kinds of records, and a restore pipeline of its own, so that any prefix of
 * it can be restored by any plan while nothing else runs. */
#ifndef BENCH_RESTORE_LAB_H
#define BENCH_RESTORE_LAB_H

#include "bench/device_rig.h"
#include "service/stack.h"
#include "policy/plan.h"
#include "state/chain.h"
#include "state/profile.h"
#include "state/restore.h"

struct lab_opts {
    struct hcache_opts engine;
    enum profile_effort effort; /* of measuring the platform that plans are made from */
    int max_chunks;             /* of the context */
};

struct lab {
    struct stack k;
    struct platform
        platform; /* plans are made from it: the stack's, throttled, corrected */
    double throttle_bytes_per_s; /* 0: none */
    struct plan_layer layer[STORE_MAX_LAYERS];
    struct device_ceilings most; /* of a device with memory of its own; else zero */

    /* private */
    struct platform_tier tier; /* the store's own, whatever it is throttled to */
    double io_overlap, comp_overlap;
    struct stream *stream;
    struct model_work *work;
    struct restore_pipeline *pipeline;
    struct kv_pool *pool;
    struct kv_table table;
    int32_t *tokens;
    int max_chunks, n_hits;
    struct store_hit *worn; /* [n_hits]: the hits, with records hidden; NULL: none are */
    struct plan_range *ranges;
    uint8_t *masks; /* [n_hits][n_layers], of the ranges */
    struct chain chain;
    struct store_hit *hits;
    uint8_t *copy; /* where the read ceiling reads (files) or copies (DRAM) to */
    size_t copy_bytes;
    struct store_reader *reader;
};

/* Opens everything, prefills the context unless the store has it, and measures the store.  *b must
 * stay where it is; lab_close also after a failure. */
int lab_open(struct lab *b, const struct lab_opts *o, struct err *err);
void lab_close(struct lab *b);

/* Slows the store's reads to this, and the platform's tier 0 with it; 0: as fast as it is. */
void lab_throttle(struct lab *b, double bytes_per_s);

/* The throttle under which C_H / IO_H of this machine is that of a built-in platform with a model:
 * the same plans are best, and speed-ups over other methods carry over.  `as` is NAME or NAME:SHAPE
 * ("a100-1ssd:llama-2-13b"; llama-2-7b without one). *ratio is C_H / IO_H. */
int lab_scale(const struct lab *b, const char *as, double *bytes_per_s, double *ratio,
              struct err *err);
/* Restores from hidden states for a while, throttled so, and learns from it, twice: what
 * plans are made from is then what long runs beside such reads hold, as in an engine that
 * has restored before.  (The profile's samples are short and alone: sustained products
 * beside reads were a fifth to a third slower.) Leaves the store throttled; nothing where
 * this store is too slow for it. */
int lab_settle_as(struct lab *b, const char *as, double *bytes_per_s, double *ratio,
                  struct err *err);

/* Hides records, as damage does: runs of chunks lose one kind in some layers, by seed.  Nothing
 * on the disk changes.  0: all are there. */
void lab_damage(struct lab *b, uint64_t seed);

/* A plan by any method of `hcache plan` for the first n_chunks; *req is what it was made from.
 * Where records are hidden a single method takes the other kind in their place, and auto, where
 * it would rather prefill the chunks from some one on, recomputes all. */
int lab_plan(struct lab *b, const char *method, int n_chunks, struct plan_request *req,
             struct plan *plan, struct err *err);
/* One restore; ERR_CORRUPT where it fell short. */
int lab_restore(struct lab *b, int n_chunks, const struct plan *plan,
                struct restore_result *out, struct err *err);
/* Corrects the platform from it, as the engine does. */
void lab_learn(struct lab *b, const struct plan_request *req, const struct plan *plan,
               const struct restore_result *r);

/* The ceiling of the I/O lane: reads the plan's records through the store, nothing else being done.
 * For DRAM, whose reads are pointers, they are copied once by all threads.  To a
 * device with memory of its own they go up meanwhile, at the rate of pinned copies
 * at best: of DRAM that is all. */
int lab_read(struct lab *b, int n_chunks, const struct plan *plan, int64_t *ns,
             struct err *err);

/* What no restore by this plan can be faster than, on a device with memory of its own:
 * its bytes at the rate of pinned copies, or its products at that of a large one,
 * whichever is longer. 0 elsewhere. */
double lab_floor_s(const struct lab *b, int n_chunks, const struct plan *plan);

#endif
