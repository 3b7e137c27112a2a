/* io_sim_node.h - one file of the simulated disk: its content, the durable part, and the result
 * of a crash; private to src/io. See io_sim_disk.h. */
#ifndef SIM_IO_SIM_NODE_H
#define SIM_IO_SIM_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

#define SIM_SECTOR 4096u
#define SIM_PART   512u /* a crash tears a sector between parts of this size */

/* Bytes of freed sectors. They stay on the medium: see io_sim_raw_count. A sector of zeros is left
 * out. */
struct sim_freed {
    uint8_t *bytes; /* [n * SIM_SECTOR] */
    size_t n, room;
};

/* The content of a file, and which of its sectors take space. Copies of an image have its memory in
 * common until one of them changes. */
struct sim_image {
    atomic_uint *n_owners; /* images with this memory; NULL: the image is empty */
    uint8_t *bytes;        /* [n_sectors * SIM_SECTOR], zero past size */
    uint8_t *allocated;    /* [n_sectors] 1: the sector takes space */
    size_t n_sectors;
    size_t n_allocated;
    bool flipped; /* a bit was flipped in a sector that takes no space */
    uint64_t size;
};

enum sim_change_kind { SIM_WRITE, SIM_TRUNCATE, SIM_ALLOCATE, SIM_PUNCH };

struct sim_change {
    enum sim_change_kind kind;
    uint64_t offset; /* place of the change; for SIM_TRUNCATE the new size */
    uint64_t length;
    struct sim_change *next;
    uint8_t bytes[]; /* [length] new bytes of SIM_WRITE; else none */
};

struct sim_node {
    /* names, unsynced changes of names, and handles that refer to the node */
    unsigned n_refs;
    /* Current names and handles that refer to the node. While it is above 0, the node's sectors
     * count as used. */
    unsigned n_live;
    bool is_dir;
    struct sim_freed
        *freed; /* receives the bytes of freed sectors; NULL: they are forgotten */
    struct sim_image current, durable;
    /* Changes that lead from durable to current content, oldest first. */
    struct sim_change *changes, **changes_tail;
    unsigned n_exclusive, n_shared; /* numbers of locks that handles hold */
};

/* Treatment of unsynced changes in a crash. */
enum sim_crash_mode {
    SIM_CRASH_DROP,   /* no unsynced change survives */
    SIM_CRASH_PREFIX, /* the oldest changes survive whole, as with a journal */
    SIM_CRASH_MIX,    /* each sector of a change is applied, dropped or torn */
    SIM_CRASH_GARBAGE /* as MIX, and some sectors hold bytes that were never written */
};

/* Returns a node with one reference. freed (NULL allowed) outlives the node. */
struct sim_node *sim_node_create(bool is_dir, struct sim_freed *freed);
void sim_node_unref(struct sim_node *n);

/* Returns a new node with the content of n after a crash. freed as in sim_node_create. */
struct sim_node *sim_node_after_crash(const struct sim_node *n, enum sim_crash_mode mode,
                                      struct rng *rng, struct sim_freed *freed);

/* Finds the first run of allocated sectors at or behind `at`. Returns false if there is none. */
bool sim_node_next_data(const struct sim_node *n, uint64_t at, uint64_t *begin,
                        uint64_t *end);
/* Adds the sector's bytes. Does nothing if they are zeros, or if f is NULL. */
void sim_freed_add(struct sim_freed *f, const uint8_t *sector);
size_t sim_node_read(const struct sim_node *n, void *buf, size_t length, uint64_t offset);
/* Returns how many sectors a write or allocation of this range would newly take. */
uint64_t sim_node_sectors_needed(const struct sim_node *n, uint64_t offset,
                                 uint64_t length);
/* Applies a change to current and notes it as unsynced. bytes is NULL except for SIM_WRITE. */
void sim_node_change(struct sim_node *n, enum sim_change_kind kind, const void *bytes,
                     uint64_t offset, uint64_t length);
void sim_node_sync(struct sim_node *n);
/* Carries out a sync that lies: the unsynced changes will never be durable, though reads see
 * them. */
void sim_node_forget(struct sim_node *n);
int sim_node_flip(struct sim_node *n, uint64_t offset, unsigned bit);

#endif
