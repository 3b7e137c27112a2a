/* life_impl.h - the parts of a seeded life (life.h): its slots, and which file does what.
 *
 *   life.c          opens, lives, closes, restarts and checks
 *   life_restore.c  a slot's restore: its job, and the comparison of what came back
 *   life_save.c     a slot's saving
 *   life_trouble.c  faults of the disk, and the thread that erases, flips bits and flushes
 *   life_world.c    models, texts and their states
 *   life_device.c   a device with memory of its own, and its reader of files */
#ifndef TESTS_STATE_LIFE_IMPL_H
#define TESTS_STATE_LIFE_IMPL_H

#include <pthread.h>

#include "base/rng.h"
#include "state/restore.h"
#include "state/saver.h"
#include "tests/state/life.h"
#include "tests/state/life_world.h"

/* One context: it is restored, and then saved. */
struct slot {
    struct world *w;
    struct kv_table *table;
    const struct text *t;      /* NULL: the slot is free */
    const struct text *wanted; /* the text fetched for the slot while it waits */
    bool waits;
    struct restore *r;
    bool is_started, is_left;
    bool is_staged;   /* reads, and has no blocks: not started yet */
    int first, asked; /* chunks */
    int least;        /* chunks that a race must bring back; 0: there is no race */
    struct plan plan;
    struct save_seq *q;
    struct store_hit hold; /* the chunk that saving continues; impl NULL: none */
    int64_t n, until;      /* tokens handed to the saver; tokens to hand to it */
    int64_t committed;
};

struct life {
    struct world *w;
    struct rng rng;
    unsigned trouble;
    struct io *io;
    struct store *store;
    struct saver *saver;
    struct restore_pipeline *pipeline;
    struct slot slot[N_SLOTS];
    int64_t committed[N_TEXTS]; /* tokens of each text that the saver reported durable */
    pthread_t other;
    bool has_other, quits;
    uint64_t burst;      /* most work items in a row */
    uint64_t dram_bytes; /* room for copies in front of the disk; 0: none */
    bool is_tight;       /* the save buffer holds four chunks; the slots may want more */
    struct life_counts *counts;
};

static inline bool life_has(const struct life *f, enum life_trouble t)
{
    return f->trouble >> t & 1;
}

/* Whether nothing may be lost and nothing may fail. */
static inline bool life_is_calm(const struct life *f)
{
    return (f->trouble & ~(1u << LIFE_SHORT)) == 0;
}

/* Whether all committed tokens must come back. */
static inline bool life_keeps(const struct life *f)
{
    return !life_has(f, LIFE_HANG) && !life_has(f, LIFE_FLIP) &&
           !life_has(f, LIFE_READ_FAIL) && !life_has(f, LIFE_ERASE);
}

static inline uint64_t life_below(struct life *f, uint64_t n)
{
    return rng_below(&f->rng, n);
}

/* Looks the first n_tokens of the slot's text up. */
void life_restore_begin(struct life *f, struct slot *s, int n_tokens);
/* Returns how many tokens the first n hits hold. */
int life_tokens_of(const struct restore_found *found, int n);
/* Starts to restore what was found, or by chance a part; all: everything.  By chance, and not with
 * `all`, it is staged first.  Returns false if nothing was found. */
bool life_restore_start(struct life *f, struct slot *s, const struct restore_found *found,
                        bool all);
/* Gives a staged restore its blocks.  Returns false where a chunk of it is gone: it is then given
 * up. */
bool life_restore_place(struct life *f, struct slot *s);
/* Compares, now and then, the last layer that new tokens may already use. */
void life_check_ready(struct life *f, const struct slot *s);
/* Lets recomputation race the reads now and then, or leaves the reads; more often in lives whose
 * reads go wrong. */
void life_stall(struct life *f, struct slot *s);
/* Compares a finished restore with the forward pass; returns how many tokens are back. */
int life_check_restored(struct life *f, struct slot *s);

/* Opens saving from token `from` on; last: the chunk before it, or NULL. */
void life_save_open(struct life *f, struct slot *s, int64_t from,
                    const struct store_hit *last);
/* Saves one batch; returns false when the slot has nothing more to save. */
bool life_save_some(struct life *f, struct slot *s);
/* Ends the slot's saving and frees the slot. */
void life_save_end(struct life *f, struct slot *s);
/* Notes the tokens that the saver reports as committed. */
void life_note_committed(struct life *f, struct slot *s);

/* Returns a bit per trouble that the seed chooses. */
unsigned life_trouble_draw(struct rng *r);
/* Arms the disk's faults. */
void life_trouble_begin(struct life *f);
/* Counts the troubles that really came. */
void life_trouble_count(struct life *f);
/* Flips one bit in each segment file of one folder. */
void life_flip(struct life *f, struct rng *r);
/* The fourth thread; arg: the life. It ends when f->quits is set. */
void *life_other_main(void *arg);

#endif
