/* io.h - files, directories and asynchronous requests behind one interface.
 *
 * A `struct io` is one way to reach a file system, chosen by constructor:
 *
 *   io_uring_open   io_uring queues, O_DIRECT where a file asks for it   (Linux with
 * io_uring) io_pread_open   plain system calls; queues work when they are waited for
 *   io_sim_open     a simulated disk in memory that can crash and fail   (io_sim.h)
 *
 * Everything above L1 is written once and runs on all three.
 *
 * What survives a crash.  Nothing, until it has been synced, and two things need it
 * separately:
 *   - bytes and length of a file:   io_file_sync
 *   - a name (create, unlink, rename, mkdir): io_dir_sync of the folder that holds the name
 * Before that, each unsynced 4 KiB sector may be new, old, torn or garbage after a crash,
 * and each unsynced name may or may not be there, in any combination.  Bytes that share a 4
 * KiB sector with an unsynced write are at risk too.  A rename is atomic: the new name is
 * the old file or the new.
 *
 * Errors.  Every function that can fail returns 0, -errno as the system gave it (a missing
 * file is -ENOENT; but a quota that is used up and a file that may not grow are -ENOSPC), or
 * ERR_BUSY, ERR_CRASHED, ERR_UNSUPPORTED, ERR_LIMIT; the message in `err` (NULL is allowed)
 * names the operation and the path.
 *
 * Threads.  A `struct io` and its files may be used from any number of threads at once; a
 * `struct io_queue` belongs to one thread at a time.  Paths are copied. */
#ifndef IO_IO_H
#define IO_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The alignment of offset, length and buffer that direct files ask for, and the sector of
 * the crash model above. */
#define IO_ALIGN 4096u

/* Requests are cut into pieces of this size. Measured best: 1 MiB at depth 4 to 8 (DESIGN
 * 8). */
#define IO_PIECE_BYTES (1u << 20)

struct io;
struct io_file;
struct io_queue;

/* ---- The file system
 * --------------------------------------------------------------------- */

/* Fails with ERR_UNSUPPORTED where this kernel or sandbox has no io_uring; the caller then
 * says so and falls back to io_pread_open, which always works. */
int io_uring_open(struct io **out, struct err *err);
int io_pread_open(struct io **out, struct err *err);

/* Opens io_uring, or plain system calls where that fails: then *why, if not NULL, says why. */
int io_machine_open(struct io **out, struct err *why, struct err *err);

/* All files and queues must be closed before. NULL is allowed. */
void io_close(struct io *io);

/* "uring", "pread" or "sim". */
const char *io_name(const struct io *io);

/* Makes every transfer through this io, synchronous or queued, take at least bytes / limit,
 * like a device of that speed (0: no limit, the default).  Reads and writes are limited
 * separately; all files of the io share the limit.  Accurate within 2 % over 100 ms; waits
 * by sleeping, and queued transfers are slowed at their completion, so that waiting can be
 * overlapped with work. Set it before transfers start. */
void io_throttle(struct io *io, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s);

/* Who goes first on a disk that several ios use. */
struct io_turn {
    atomic_uint n_first; /* pieces under way of ios that go first */
};

/* Makes the queues of this io go first, or give way: a queue that gives way has at
 * most one piece in flight while a queue that goes first has any.  So it goes on
 * slowly, and never starves.  Set it before transfers start; `turn` outlives the io.
 * Synchronous transfers take no part. */
void io_share_disk(struct io *io, struct io_turn *turn, bool goes_first);

/* Random bytes for salts and UUIDs: the kernel's, or seeded on the simulated disk. */
int io_random(struct io *io, void *buf, size_t n, struct err *err);

/* ---- Files
 * ------------------------------------------------------------------------------- */

enum {
    IO_READ_ONLY = 1 << 0, /* default is read and write */
    IO_CREATE = 1 << 1,    /* create where missing, mode 0600 */
    IO_EXCL = 1 << 2,      /* with IO_CREATE: -EEXIST where it is there */
    IO_DIRECT = 1 << 3,    /* bypass the page cache; IO_ALIGN everywhere, else -EINVAL */
};

/* Where the file system has no direct I/O (some tmpfs), an IO_DIRECT file goes through the
 * page cache, alignment still being checked; io_file_is_direct says which. */
/* A symbolic link at the end of the path is not followed: -ELOOP.  A pipe, a socket or a device
 * is not waited for: -ESPIPE or -ENXIO. */
int io_file_open(struct io *io, const char *path, unsigned flags, struct io_file **out,
                 struct err *err);
/* Says nothing about durability. No request may be in flight on the file. NULL is allowed.
 */
void io_file_close(struct io_file *f);

const char *
io_file_path(const struct io_file *f); /* as given to open; lives as long as f */
bool io_file_is_direct(const struct io_file *f);
/* For others that read the file by themselves: its descriptor, which stays f's; -1 where that
 * would not be what reading here is (a simulated disk, reads that are throttled). */
int io_file_fd(const struct io_file *f);

/* Full transfers: short ones are continued. A read past the end of the file is -ENODATA
 * (the part of the buffer that exists has been read). */
int io_file_pread(struct io_file *f, void *buf, size_t n, uint64_t offset, struct err *err);
int io_file_pwrite(struct io_file *f, const void *buf, size_t n, uint64_t offset,
                   struct err *err);
/* As io_file_pread, but the end of the file is no error: *got is what was there. */
int io_file_pread_some(struct io_file *f, void *buf, size_t n, uint64_t offset, size_t *got,
                       struct err *err);

/* fdatasync. When it returns 0, every write, truncate, allocate and punch on this file that
 * had returned (or completed) before the call survives a crash.  After a failure nothing is
 * known about the writes since the last good sync, and every later sync of this io_file
 * fails too: Linux would report success without having written the lost pages.  Reopen,
 * re-read and verify instead. */
int io_file_sync(struct io_file *f, struct err *err);

int io_file_size(struct io_file *f, uint64_t *size_bytes, struct err *err);
int io_file_truncate(struct io_file *f, uint64_t size_bytes, struct err *err);

/* Reserves space (the file grows to offset + length, reading as zeros), so that ENOSPC
 * comes early. -EOPNOTSUPP where the file system cannot: go on without. */
int io_file_allocate(struct io_file *f, uint64_t offset, uint64_t length, struct err *err);

/* Frees the space of a range, which then reads as zeros; the size stays. Whole sectors
 * only. Where the file system has no holes, zeros are written instead: the content is gone
 * either way. */
int io_file_punch(struct io_file *f, uint64_t offset, uint64_t length, struct err *err);

/* Advisory lock on the whole file, without waiting: exclusive, or shared where f is
 * IO_READ_ONLY. ERR_BUSY where another process, or another io_file of this process, holds
 * it (also an sqlite3 shell, since it is an fcntl lock).  Ends with io_file_unlock, close,
 * or the process. */
int io_file_lock(struct io_file *f, struct err *err);
int io_file_unlock(struct io_file *f, struct err *err);

/* ---- Directories
 * ------------------------------------------------------------------------- */

struct io_stat {
    bool is_dir;
    uint64_t size_bytes;
    uint64_t allocated_bytes; /* space taken on the device; holes do not count */
    uint64_t device, inode;   /* equal where two paths name one file or folder */
    /* It belongs to a user who is neither the process's nor root.  False for root, who may use
     * everybody's. */
    bool is_foreign;
};

struct io_names { /* of a folder: without "." and "..", sorted */
    char **name;
    size_t n;
};

int io_mkdir(struct io *io, const char *path,
             struct err *err); /* 0700; -EEXIST where there */
/* Takes a folder that is there from all but its owner: 0700, as if io_mkdir had made it. */
int io_make_private(struct io *io, const char *path, struct err *err);
/* Creates what is missing of the path, and syncs the folders in which it created
 * something.  *n_made (NULL allowed): how many, the last ones of the path.  Where it
 * fails, what it made is gone again. */
int io_mkdirs(struct io *io, const char *path, int *n_made, struct err *err);
/* Takes back what io_mkdirs has made: the path's last n folders, as far as they are empty. */
void io_rmdirs(struct io *io, const char *path, int n);
int io_list(struct io *io, const char *path, struct io_names *out, struct err *err);
void io_names_free(struct io_names *names);
int io_stat(struct io *io, const char *path, struct io_stat *out, struct err *err);
bool io_exists(struct io *io, const char *path); /* false also where it cannot be told */
int io_unlink(struct io *io, const char *path,
              struct err *err); /* a file or an empty folder */
int io_rename(struct io *io, const char *from, const char *to,
              struct err *err); /* replaces `to` */
/* When it returns 0, every create, unlink, rename and mkdir of a name in this folder
 * survives. */
int io_dir_sync(struct io *io, const char *path, struct err *err);
int io_parent_sync(struct io *io, const char *path, struct err *err); /* of path's folder */
int io_space(struct io *io, const char *path, uint64_t *free_bytes, uint64_t *total_bytes,
             struct err *err);

/* ---- Asynchronous requests
 * --------------------------------------------------------------- */

enum io_op { IO_READ, IO_WRITE };

/* The caller owns the memory of a request and its buffer, and leaves both alone from submit
 * until the request comes back from io_queue_wait. */
struct io_req {
    struct io_file *file;
    enum io_op op;
    void *buf;
    size_t length; /* any size: cut into pieces inside */
    uint64_t offset;
    void *user;
    int result; /* set at completion: 0 = transferred in full, or an error (as
                   io_file_pread) */
    /* private to the queue */
    struct io_req *next;
    size_t issued_bytes;
    unsigned n_pieces;
    int64_t ready_ns;
};

/* `depth` is the largest number of pieces in flight in the kernel, 1 to 1024. */
int io_queue_open(struct io *io, unsigned depth, struct io_queue **out, struct err *err);
/* Waits for what is in flight, forgets the rest. NULL is allowed. */
void io_queue_close(struct io_queue *q);

/* Registers staging buffers with the kernel once, which saves pinning their pages per
 * request: any request whose buffer lies wholly inside one of them gains.  At most 64
 * buffers, page-aligned, each up to 1 GiB; once per queue, before the first submit; they
 * stay until the queue is closed. A failure (-ENOMEM under a small RLIMIT_MEMLOCK) leaves
 * the queue usable without. */
struct io_buffer {
    void *base;
    size_t length;
};
int io_queue_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                              unsigned n, struct err *err);

/* Takes the requests, in order, and starts as many pieces as the depth allows; the rest
 * start as others end (inside io_queue_wait).  Never blocks and never refuses: the waiting
 * requests are linked through the caller's own memory.  What is wrong with a request is
 * found in its `result`. */
void io_queue_submit(struct io_queue *q, struct io_req *const reqs[], unsigned n);

/* Waits until `min` requests have completed (or all that are outstanding, if fewer), or
 * timeout_ns has passed (negative: for ever), and returns up to `max` completed ones in
 * done[], in order of completion.  min = 0 polls.  The return value is an error of the
 * queue itself, after which it can only be closed; errors of requests are in their
 * `result`. */
int io_queue_wait(struct io_queue *q, unsigned min, unsigned max, int64_t timeout_ns,
                  struct io_req *done[], unsigned *n_done, struct err *err);

/* The waiting half of io_queue_wait: until a request can be handed out, or timeout_ns has passed.
 * *is_done: one can.  The return value is that of io_queue_wait. */
int io_queue_await(struct io_queue *q, int64_t timeout_ns, bool *is_done, struct err *err);

/* Asks for an early end of all that is outstanding, because a device does not answer: requests
 * not yet begun, and those that the kernel gives back, come back from io_queue_wait with
 * -ECANCELED (a write may have happened in part).  What a device already has cannot be taken
 * from it: such a request, and its buffer, stay in flight until the kernel's own timeout (30 s
 * for most block devices) fails it. */
void io_queue_cancel(struct io_queue *q);

/* Requests submitted and not yet returned by io_queue_wait. */
unsigned io_queue_outstanding(const struct io_queue *q);

/* Pieces that the kernel has now: at most the queue's depth. */
unsigned io_queue_in_flight(const struct io_queue *q);

/* Writes the message that belongs to req->result; returns its code (0: there is none). */
int io_req_err(const struct io_req *req, struct err *err);

#endif
