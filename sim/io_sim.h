/* io_sim.h - a disk in memory that crashes and fails on demand, the same way for the same seed.
 *
 * It is a `struct io` like any other (io.h), with its own namespace of absolute paths, in which
 * only "/" exists at first. For every file it keeps
 *
 *   current   the content that reads see
 *   durable   the content that has been synced
 *   unsynced  the list of writes, truncates and punches that lead from durable to current
 *
 * and likewise for the names of every folder. A crash starts from `durable`. For each 4 KiB
 * sector of each unsynced write it decides by seed whether the sector is applied, dropped, torn
 * (some of its eight 512-byte parts applied) or filled with garbage. Each unsynced change of a
 * name is applied or dropped. In half of the crashes the oldest changes survive, as with a
 * journal; in the other half each change is decided alone. Syncing a file does not make its name
 * durable.
 *
 * After a crash all handles, and new opens, fail with ERR_CRASHED until io_sim_restart. Handles
 * from before stay dead and must still be closed. Any thread may call all functions. The order
 * in which queued requests execute and complete is seeded too, so a single-threaded program
 * behaves identically in each run. */
#ifndef SIM_IO_SIM_H
#define SIM_IO_SIM_H

#include "io/io.h"

struct io_sim_opts {
    uint64_t seed;
    uint64_t capacity_bytes; /* 0: 1 GiB. Writes beyond the capacity fail with -ENOSPC. */
    bool keeps_freed;        /* the bytes of freed sectors are kept: io_sim_raw_count */
};

int io_sim_open(const struct io_sim_opts *opts, struct io **out, struct err *err);

/* ---- Crashes ----------------------------------------------------------------------------- */

enum io_sim_point {
    /* At any of: write, truncate, allocate, punch, create, unlink, rename, mkdir, sync. */
    IO_SIM_AT_OP,
    IO_SIM_AT_BARRIER, /* a file sync or a directory sync */
};

/* Cuts the power now. */
void io_sim_crash(struct io *io);
/* Cuts the power in the middle of the n-th operation of that kind from now (n = 1: the next). That
 * operation returns ERR_CRASHED; a write or name change may or may not have happened, and a sync
 * has not completed. n = 0 cancels the crash. */
void io_sim_crash_at(struct io *io, enum io_sim_point point, uint64_t n);
bool io_sim_crashed(struct io *io);
void io_sim_restart(struct io *io);
/* Returns the number of operations of that kind since io_sim_open. A test runs once to get it, then
 * crashes at each operation. */
uint64_t io_sim_count(struct io *io, enum io_sim_point point);
/* Makes a new, independent disk with the content that this one would have if power failed now;
 * `seed` chooses the damage. This disk goes on undisturbed, so a test can try many seeds at one
 * moment. */
int io_sim_fork(struct io *io, uint64_t seed, struct io **out, struct err *err);

/* ---- Faults ------------------------------------------------------------------------------ */

enum io_sim_fault_kind {
    IO_SIM_FAIL,  /* the operation returns `code` (-EIO, -ENOSPC, -EROFS, -EMFILE, ...) */
    IO_SIM_SHORT, /* a transfer moves only a part; the layer above continues it */
    /* A write (or a sync, if `on` says so) does nothing and returns success. */
    IO_SIM_LOST,
    IO_SIM_MISDIRECTED, /* a write lands some sectors away in the same file */
    /* A read returns one wrong bit, once. The medium keeps the right bit. */
    IO_SIM_READ_FLIP,
    IO_SIM_SLOW,  /* the operation takes `slow_ns` longer */
    IO_SIM_STUCK, /* a queued transfer ends only at io_queue_cancel or io_sim_unstick */
    /* A sync fails with -EIO and drops the unsynced changes. Later syncs return 0. */
    IO_SIM_SYNC_LIES,
};

/* operations that a fault hits, combined by bitwise or */
enum {
    IO_SIM_ON_READ = 1 << 0,
    IO_SIM_ON_WRITE = 1 << 1,
    IO_SIM_ON_SYNC = 1 << 2, /* io_file_sync */
    IO_SIM_ON_DIR_SYNC = 1 << 3,
    IO_SIM_ON_OPEN = 1 << 4,
    IO_SIM_ON_NAME = 1 << 5,  /* create, unlink, rename, mkdir */
    IO_SIM_ON_SPACE = 1 << 6, /* truncate, allocate, punch */
    IO_SIM_ON_ALL = 0x7f,
};

/* number of different codes of IO_SIM_FAIL that are counted separately */
#define IO_SIM_MAX_CODES 8

struct io_sim_fault {
    enum io_sim_fault_kind kind;
    /* operations to hit (IO_SIM_ON_); 0: all that this kind of fault can hit */
    unsigned on;
    /* hit only operations whose path contains this text, which is copied; NULL: all paths */
    const char *path;
    uint64_t skip;   /* matching operations that pass before the first hit */
    uint64_t count;  /* matching operations to hit after the skipped ones; 0: all */
    double chance;   /* probability that a matching operation is hit, by seed; 0 means 1 */
    int code;        /* for IO_SIM_FAIL: the code; 0 means -EIO */
    int64_t slow_ns; /* for IO_SIM_SLOW: the added time */
};

/* Adds a fault. Several may be active; the first that matches an operation hits. Faults never hit
 * size, stat, list, space and locks, which fail only after a crash. An operation that fails by a
 * fault is not counted by io_sim_count. Returns ERR_LIMIT if 16 faults are active. */
int io_sim_fault_add(struct io *io, const struct io_sim_fault *fault);
void io_sim_fault_clear(struct io *io);
/* Returns how often any fault has hit since io_sim_open. */
uint64_t io_sim_fault_hits(struct io *io);
#define IO_SIM_FAULT_KINDS (IO_SIM_SYNC_LIES + 1)
/* Returns how often one kind has hit; for IO_SIM_FAIL only hits with this code. */
uint64_t io_sim_fault_count(struct io *io, enum io_sim_fault_kind kind, int code);
/* Lets every stuck transfer go on. */
void io_sim_unstick(struct io *io);

/* Flips one bit (0 to 7) of a byte on the medium. Returns -ENOENT, or -EINVAL past the end. */
int io_sim_flip(struct io *io, const char *path, uint64_t offset, unsigned bit);

/* Returns in how many places the medium itself holds these bytes: a file as it is durable counts
 * once, and each freed sector once (of a disk with keeps_freed). Every sector that a punch, a
 * truncate or the end of a file has ever freed keeps its bytes: those that were durable, and those
 * that were written and not synced, because the system may have written them. A file that is open
 * and unsynced is searched as of its last sync. */
size_t io_sim_raw_count(struct io *io, const void *what, size_t n);

/* Returns a digest of names and durable content, for tests of determinism. */
uint64_t io_sim_digest(struct io *io);

#endif
