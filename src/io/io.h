/* io.h - files, directories and asynchronous requests behind one interface.
 *
 * A `struct io` is one way to reach a file system, chosen by constructor:
 *
 *   io_uring_open   io_uring queues, O_DIRECT where a file asks for it   (Linux with io_uring)
 *   io_pread_open   plain system calls; queues work when they are waited for
 *   io_sim_open     a simulated disk in memory that can crash and fail   (io_sim.h)
 *
 * All code above this layer is written once and runs on all three.
 *
 * What survives a crash. Nothing that has not been synced. Two things are synced separately:
 * - bytes and length of a file: io_file_sync
 * - a name (create, unlink, rename, mkdir): io_dir_sync of the folder that holds the name
 *
 * Before that, each unsynced 4 KiB sector may be new, old, torn or garbage after a crash, and
 * each unsynced name may or may not exist, in any combination. Bytes that share a 4 KiB sector
 * with an unsynced write are at risk too. A rename is atomic: after a crash the new name leads to
 * the file that had it before or to the renamed file.
 *
 * Errors. Every function that can fail returns 0, -errno as the system gave it (a missing file
 * is -ENOENT; but an exhausted quota and a file that may not grow are -ENOSPC), or ERR_BUSY,
 * ERR_CRASHED, ERR_UNSUPPORTED, ERR_LIMIT. The message in `err` (NULL is allowed) names the
 * operation and the path.
 *
 * Threads. Any number of threads may use a `struct io` and its files at once. A `struct
 * io_queue` belongs to one thread at a time. Paths are copied. */
#ifndef IO_IO_H
#define IO_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Required alignment of offset, length and buffer for direct files, and the size of a sector in the
 * crash model above. */
#define IO_ALIGN 4096u

/* Requests are cut into pieces of this size. 1 MiB at depth 4 to 8 was measured best. */
#define IO_PIECE_BYTES (1u << 20)

struct io;
struct io_file;
struct io_alarm;
struct io_queue;

/* ---- The file system --------------------------------------------------------------------- */

/* Opens the machine's file system with io_uring. Returns ERR_UNSUPPORTED if this kernel or sandbox
 * has no io_uring. The caller then reports it and calls io_pread_open, which always works. */
int io_uring_open(struct io **out, struct err *err);
struct io *io_pread_open(void);

/* Opens an io over io_uring. If that fails, opens one over plain system calls and sets *why (NULL
 * is allowed) to the reason. */
struct io *io_machine_open(struct err *why);

/* Closes the io. All its files and queues must be closed before. NULL is allowed. */
void io_close(struct io *io);

/* Returns "uring", "pread" or "sim". */
const char *io_name(const struct io *io);

/* Makes every transfer through this io, synchronous or queued, take at least bytes / limit, like a
 * device of that speed (0: no limit, the default). Reads and writes are limited separately; all
 * files of one process share the limit. Accurate within 2 % over 100 ms. The throttle waits by
 * sleeping. Queued transfers are slowed at their completion, so that waiting can be overlapped
 * with work. Call it while no transfer runs. */
void io_throttle(struct io *io, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s);

/* Priority on a disk that several ios use. */
struct io_turn {
    atomic_uint n_first; /* number of pieces in flight of ios that go first */
};

/* Gives the queues of this io priority, or makes them give way. A queue that gives way has at most
 * one piece in flight while a queue with priority has any, so it goes on slowly and never starves.
 * Call it before transfers start. `turn` must outlive the io. Synchronous transfers are not
 * affected. */
void io_share_disk(struct io *io, struct io_turn *turn, bool goes_first);

/* Fills buf with random bytes, from the kernel or from the simulated disk's seed. */
int io_random(struct io *io, void *buf, size_t n, struct err *err);

/* ---- Files ------------------------------------------------------------------------------- */

enum {
    IO_READ_ONLY = 1 << 0, /* open for reading only; the default is reading and writing */
    IO_CREATE = 1 << 1,    /* create a missing file, mode 0600 */
    IO_EXCL = 1 << 2,      /* with IO_CREATE: -EEXIST if the file exists */
    /* bypass the page cache; offset, length and buffer must be aligned to IO_ALIGN (for a read, to
     * io_file_read_align), else -EINVAL */
    IO_DIRECT = 1 << 3,
};

/* Opens a file. If the file system has no direct I/O (some tmpfs), an IO_DIRECT file goes through
 * the page cache, but alignment is still checked. Returns -ELOOP if the path ends with a symbolic
 * link, which is not followed. Returns -ESPIPE or -ENXIO at once for a pipe, a socket or a
 * device. */
int io_file_open(struct io *io, const char *path, unsigned flags, struct io_file **out,
                 struct err *err);
/* Closes a file. It does not sync. No request may be in flight on the file. NULL is allowed. */
void io_file_close(struct io_file *f);

/* Returns the path as given to open; valid as long as f. */
const char *io_file_path(const struct io_file *f);
/* Returns the alignment of buffer, offset and length that reads of a direct file need: IO_ALIGN, or
 * less if the system says that the device needs less. */
uint32_t io_file_read_align(const struct io_file *f);
/* Returns the file's descriptor, which f keeps, for reads that bypass this io. Returns -1 if such
 * reads would differ from reads through f (a simulated disk, a throttle). */
int io_file_fd(const struct io_file *f);

/* Full transfers: short ones are continued. A read past the end of the file returns -ENODATA, with
 * the bytes before the end in the buffer. */
int io_file_pread(struct io_file *f, void *buf, size_t n, uint64_t offset, struct err *err);
int io_file_pwrite(struct io_file *f, const void *buf, size_t n, uint64_t offset,
                   struct err *err);
/* Like io_file_pread, but the end of the file is no error: *got is the number of bytes read. */
int io_file_pread_some(struct io_file *f, void *buf, size_t n, uint64_t offset, size_t *got,
                       struct err *err);

/* Reads the first n bytes of the file at `path`, and zeros where it has no bytes. *got is the
 * number of bytes read. A missing file counts as empty. */
int io_read_head(struct io *io, const char *path, void *out, size_t n, size_t *got,
                 struct err *err);
/* Writes n bytes to the file at `path` from `offset` on, and syncs it. flags are IO_CREATE or 0. */
int io_write_durably(struct io *io, const char *path, unsigned flags, const void *bytes,
                     size_t n, uint64_t offset, struct err *err);
/* Makes an empty file if there is none at `path`. Its name is durable when it returns 0. */
int io_touch(struct io *io, const char *path, struct err *err);

/* Makes a file's content durable (fdatasync). When it returns 0, every write, truncate, allocate
 * and punch on this file that had returned (or completed) before the call survives a crash. After a
 * failure the state of all writes since the last good sync is unknown, and every later sync of this
 * io_file fails too: Linux would report success without having written the lost pages. Reopen,
 * re-read and verify instead. */
int io_file_sync(struct io_file *f, struct err *err);

int io_file_size(struct io_file *f, uint64_t *size_bytes, struct err *err);
int io_file_truncate(struct io_file *f, uint64_t size_bytes, struct err *err);

/* Reserves space, so that a full disk is noticed here and not at a later write. The file grows to
 * offset + length and reads as zeros there. Returns -EOPNOTSUPP if the file system cannot reserve
 * space; the caller may then go on without the reservation. */
int io_file_allocate(struct io_file *f, uint64_t offset, uint64_t length, struct err *err);

/* Frees the space of a range of whole sectors, which then reads as zeros; the file's size stays. On
 * a file system without holes it writes zeros instead. Like truncate and unlink it leaves the bytes
 * in free blocks of the medium: io_erase.h overwrites them first. */
int io_file_punch(struct io_file *f, uint64_t offset, uint64_t length, struct err *err);

/* Finds the first run [*begin, *end) of stored bytes at or behind `at`. Between runs are holes. If
 * there is no run, *begin == *end. A file system that knows no holes reports the whole file. */
int io_file_next_data(struct io_file *f, uint64_t at, uint64_t *begin, uint64_t *end,
                      struct err *err);

/* Takes an advisory lock on the whole file, without waiting: exclusive, or shared if f is
 * IO_READ_ONLY. Returns ERR_BUSY if another process or another io_file of this process holds a
 * conflicting lock. These are fcntl locks, so the locks of an sqlite3 shell count too. The lock
 * ends with io_file_unlock, with close, or with the process. */
int io_file_lock(struct io_file *f, struct err *err);
int io_file_unlock(struct io_file *f, struct err *err);

/* ---- Directories ------------------------------------------------------------------------- */

struct io_stat {
    bool is_dir;
    uint64_t size_bytes;
    uint64_t allocated_bytes; /* space used on the device; holes do not count */
    uint64_t device, inode;   /* equal for two paths that name the same file or folder */
    uint64_t n_names;         /* number of names (hard links) of the file */
    /* The owner is neither this process's user nor root. Always false for root, who may use all
     * files. */
    bool is_foreign;
};

struct io_names { /* names in a folder: without "." and "..", sorted */
    char **name;
    size_t n;
};

/* Makes a folder with mode 0700. Returns -EEXIST if the name exists. */
int io_mkdir(struct io *io, const char *path, struct err *err);
/* Restricts an existing folder to its owner: 0700, as if io_mkdir had made it. */
int io_make_private(struct io *io, const char *path, struct err *err);
/* Creates the missing folders of the path, and syncs the folders in which it created one. *n_made
 * (NULL allowed) is the number of created folders, the last n_made of the path. On a failure
 * removes the folders that it created. */
int io_mkdirs(struct io *io, const char *path, int *n_made, struct err *err);
/* Removes the last n folders of the path, which io_mkdirs made. Stops at one that is not empty. */
void io_rmdirs(struct io *io, const char *path, int n);
int io_list(struct io *io, const char *path, struct io_names *out, struct err *err);
void io_names_free(struct io_names *names);
int io_stat(struct io *io, const char *path, struct io_stat *out, struct err *err);
/* Returns false also if the check fails. */
bool io_exists(struct io *io, const char *path);
/* Removes a file or an empty folder. */
int io_unlink(struct io *io, const char *path, struct err *err);
/* Renames a file. Replaces `to` if it exists. */
int io_rename(struct io *io, const char *from, const char *to, struct err *err);
/* When it returns 0, every earlier create, unlink, rename and mkdir in this folder is durable. */
int io_dir_sync(struct io *io, const char *path, struct err *err);
/* Syncs the folder that holds the path. */
int io_parent_sync(struct io *io, const char *path, struct err *err);
int io_space(struct io *io, const char *path, uint64_t *free_bytes, uint64_t *total_bytes,
             struct err *err);

/* ---- Asynchronous requests --------------------------------------------------------------- */

enum io_op { IO_READ, IO_WRITE };

/* The caller owns the memory of a request and its buffer, and leaves both alone from submit
 * until the request comes back from io_queue_wait. */
struct io_req {
    struct io_file *file;
    enum io_op op;
    void *buf;
    /* length in bytes, of any size: the queue cuts the request into pieces */
    size_t length;
    uint64_t offset;
    /* A read of a direct file comes from the page cache if the cache has its bytes. */
    bool may_hit;
    void *user;
    /* Set at completion: 0 if all was transferred, else an error as from io_file_pread. */
    int result;
    size_t cached_bytes; /* set at completion: bytes that came from the page cache */
    /* for the queue only */
    struct io_req *next;
    size_t issued_bytes;
    unsigned n_pieces;
    int64_t ready_ns;
};

/* Opens a queue. `depth` is the largest number of pieces in flight in the kernel, 1 to 1024. */
int io_queue_open(struct io *io, unsigned depth, struct io_queue **out, struct err *err);
/* Waits for requests in flight and drops the others. NULL is allowed. */
void io_queue_close(struct io_queue *q);

/* Registers staging buffers with the kernel, so that it need not pin their pages for each request.
 * This speeds up every request whose buffer lies wholly inside one of them. At most 64 buffers,
 * page-aligned, each up to 1 GiB; once per queue, before the first submit. They stay registered
 * until the queue is closed. After a failure (-ENOMEM under a small RLIMIT_MEMLOCK) the queue works
 * without them. */
struct io_buffer {
    void *base;
    size_t length;
};
int io_queue_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                              unsigned n, struct err *err);

/* Takes the requests, in order, and starts as many pieces as the depth allows; the other pieces
 * start when these end (inside io_queue_wait). Never blocks and never refuses: waiting requests are
 * linked through the caller's own memory. A request's error is in its `result`. */
void io_queue_submit(struct io_queue *q, struct io_req *const reqs[], unsigned n);

/* Waits until `min` requests have completed (or all outstanding ones, if fewer), or timeout_ns
 * has passed (negative: for ever). Returns up to `max` completed ones in done[], in order of
 * completion. min = 0 polls. The return value is an error of the queue itself, after which it
 * can only be closed; errors of requests are in their `result`. */
int io_queue_wait(struct io_queue *q, unsigned min, unsigned max, int64_t timeout_ns,
                  struct io_req *done[], unsigned *n_done, struct err *err);

/* The waiting half of io_queue_wait: waits until io_queue_wait could return a request (*is_done
 * becomes true), or timeout_ns has passed. The return value is that of io_queue_wait. */
int io_queue_await(struct io_queue *q, int64_t timeout_ns, bool *is_done, struct err *err);

/* From now on a ring of the alarm ends io_queue_await early (io_alarm.h). A waiting queue of a
 * simulated disk cannot be woken, so it checks the alarm every millisecond. */
void io_queue_listen(struct io_queue *q, struct io_alarm *alarm);
/* Returns whether a ring ended the last io_queue_await. */
bool io_queue_has_rung(const struct io_queue *q);

/* Asks for an early end of all outstanding requests, because a device does not answer. Requests
 * not yet begun, and those that the kernel gives back, come back from io_queue_wait with
 * -ECANCELED (a write may have happened in part). A request that a device already has stays in
 * flight, with its buffer, until the kernel's own timeout (30 s for most block devices) fails
 * it. */
void io_queue_cancel(struct io_queue *q);

/* Returns the number of requests submitted and not yet returned by io_queue_wait. */
unsigned io_queue_outstanding(const struct io_queue *q);

/* Returns the number of pieces that the kernel has now: at most the queue's depth. */
unsigned io_queue_in_flight(const struct io_queue *q);

/* Writes the message for req->result. Returns req->result. */
int io_req_err(const struct io_req *req, struct err *err);

#endif
