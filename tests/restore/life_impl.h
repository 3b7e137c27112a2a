/* life_impl.h - the parts of a seeded life (life.h): its slots, and which file does what.
 *
 *   life.c          opens, lives, closes, restarts and checks
 *   life_restore.c  a slot's restore: its job, and the comparison of what came back
 *   life_save.c     a slot's saving
 *   life_trouble.c  faults of the disk, and the thread that erases, flips bits and flushes
 *   life_erase.c    erasures, and chunks that must not outlive them
 *   life_world.c    models, texts and their states
 *   life_device.c   a device with memory of its own, and its reader of files */
#ifndef TESTS_RESTORE_LIFE_IMPL_H
#define TESTS_RESTORE_LIFE_IMPL_H

#include <pthread.h>

#include "base/rng.h"
#include "restore/restore.h"
#include "save/saver.h"
#include "tests/restore/life.h"
#include "tests/restore/life_world.h"

/* One context, which is restored and then saved. */
struct slot {
    struct world *w;
    struct kv_table *table;
    const struct text *t;      /* NULL: the slot is free */
    const struct text *wanted; /* the text fetched for the slot while it waits */
    bool waits;
    struct restore *r;
    int64_t t_begun; /* when the look-up of its restore began */
    bool is_started, is_left;
    int first, asked; /* first: the first restored chunk; asked: the number of chunks */
    /* chunks that must come back from a race with recomputation; 0: the restore does not race */
    int least;
    struct plan plan;
    struct save_seq *q;
    /* the chunk that saving continues; impl is NULL if there is none */
    struct store_hit hold;
    int64_t n, until; /* tokens handed to the saver; the count at which saving stops */
    uint64_t epoch;   /* store_epoch when the request began */
    /* life.erased[].n_begun of each text when the request began */
    uint64_t n_erasures[N_TEXTS];
    int64_t committed;
};

/* Says which chunks of a text may be stored after the text's erasures. */
struct life_erased {
    uint64_t n_begun; /* erasures that have begun */
    int64_t kept;     /* tokens that the last erasure has kept; INT64_MAX: no erasure */
    /* tokens that requests begun after the last erasure have handed to the saver */
    int64_t fresh;
};

struct life {
    struct world *w;
    struct life_erased erased[N_TEXTS];
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
    uint64_t burst;      /* largest number of work items in a row */
    uint64_t dram_bytes; /* DRAM for copies of chunks; 0: no copies */
    bool is_tight; /* the save buffer holds four chunks only; the slots may want more */
    struct life_counts *counts;
};

static inline bool life_has(const struct life *f, enum life_trouble t)
{
    return f->trouble >> t & 1;
}

/* Returns whether nothing may be lost and nothing may fail. */
static inline bool life_is_calm(const struct life *f)
{
    return (f->trouble & ~(1u << LIFE_SHORT)) == 0;
}

/* Returns whether all committed tokens must come back. */
static inline bool life_keeps(const struct life *f)
{
    return !life_has(f, LIFE_HANG) && !life_has(f, LIFE_FLIP) &&
           !life_has(f, LIFE_READ_FAIL) && !life_has(f, LIFE_LOSSY) &&
           !life_has(f, LIFE_ERASE);
}

static inline uint64_t life_below(struct life *f, uint64_t n)
{
    return rng_below(&f->rng, n);
}

/* Looks up the first n_tokens of the slot's text. */
void life_restore_begin(struct life *f, struct slot *s, int n_tokens);
/* Returns how many tokens the first n hits hold. */
int life_tokens_of(const struct restore_found *found, int n);
/* Starts a restore of the found chunks. Returns false if nothing was found. If `all` is set, the
 * restore takes all of them; otherwise it takes a random part. */
bool life_restore_start(struct life *f, struct slot *s, const struct restore_found *found,
                        bool all);
/* At random times, compares the last layer that new tokens may use already with the forward
 * pass. */
void life_check_ready(struct life *f, const struct slot *s);
/* At random times, lets recomputation race with the reads, or gives the reads up.  It does so more
 * often in lives with faulty reads. */
void life_stall(struct life *f, struct slot *s);
/* Compares a finished restore with the forward pass; returns how many tokens are back. */
int life_check_restored(struct life *f, struct slot *s);

/* Begins to save the slot's text from token `from` on. `last` is the stored chunk before it, or
 * NULL. */
void life_save_open(struct life *f, struct slot *s, int64_t from,
                    const struct store_hit *last);
/* Saves one batch; returns false when the slot has nothing more to save. */
bool life_save_some(struct life *f, struct slot *s);
/* Ends the slot's saving and frees the slot. */
void life_save_end(struct life *f, struct slot *s);
/* Notes the tokens that the saver reports as committed. */
void life_note_committed(struct life *f, struct slot *s);

/* Returns the troubles that the seed chooses, one bit each. */
unsigned life_trouble_draw(struct rng *r);
/* Sets up the faults of the simulated disk. */
void life_trouble_begin(struct life *f);
/* Counts the troubles that really happened. */
void life_trouble_count(struct life *f);
/* Notes the erasures that have begun before a request of the slot. */
void life_erase_begin(struct life *f, struct slot *s);
/* Notes that the slot has handed tokens [0, s->n) to the saver. */
void life_erase_note(struct life *f, const struct slot *s);
/* Erases a random text. */
void life_erase(struct life *f, struct rng *r);
/* Checks that no chunk has outlived an erasure. No slot may be in use. */
void life_erase_check(struct life *f);
/* Flips one bit in each segment file of one directory. */
void life_flip(struct life *f, struct rng *r);
/* The main function of the thread that flushes, erases and damages. `arg` is the life. Returns when
 * f->quits is set. */
void *life_other_main(void *arg);

#endif
