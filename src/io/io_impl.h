/* io_impl.h - the interface of an implementation of `struct io`; private to src/io.
 *
 * The front (io.c, io_dir.c, io_queue.c) owns everything that is the same for all: argument and
 * alignment checks, continuing short transfers, cutting requests into pieces, the throttle, and
 * the messages. A backend makes single attempts and returns plain codes:
 *
 *   io.c  io_dir.c ----> struct io_ops        io_posix.c (uring and pread)   io_sim.c
 *   io_queue.c     ----> struct io_queue_ops  io_uring.c   io_pread.c        io_sim_queue.c */
#ifndef IO_IO_IMPL_H
#define IO_IO_IMPL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "io/io.h"
#include "io/io_throttle.h"

struct io_ops {
    void (*close)(struct io *io);
    int (*random)(struct io *io, void *buf, size_t n);
    void (*throttle)(struct io *io, uint64_t read, uint64_t write); /* NULL: io.c limits */

    int (*file_open)(struct io *io, const char *path, unsigned flags, struct io_file **out);
    void (*file_close)(struct io_file *f);
    int (*file_fd)(const struct io_file *f); /* NULL: files have no descriptor */
    /* Returns whether the page cache has these bytes; starts no reading. NULL: it never has. */
    bool (*file_is_cached)(struct io_file *f, uint64_t offset, size_t n);
    /* The next two make one attempt to transfer n bytes. Return the bytes transferred (0 at the end
     * of the file), or a negative code. */
    ssize_t (*file_pread)(struct io_file *f, void *buf, size_t n, uint64_t offset);
    ssize_t (*file_pwrite)(struct io_file *f, const void *buf, size_t n, uint64_t offset);
    int (*file_sync)(struct io_file *f);
    int (*file_size)(struct io_file *f, uint64_t *size_bytes);
    int (*file_truncate)(struct io_file *f, uint64_t size_bytes);
    int (*file_allocate)(struct io_file *f, uint64_t offset, uint64_t length);
    int (*file_punch)(struct io_file *f, uint64_t offset, uint64_t length);
    /* As io_file_next_data. -ENXIO: there is no data at or behind `at`. */
    int (*file_next_data)(struct io_file *f, uint64_t at, uint64_t *begin, uint64_t *end);
    int (*file_lock)(struct io_file *f);
    int (*file_unlock)(struct io_file *f);

    int (*mkdir)(struct io *io, const char *path);
    int (*make_private)(struct io *io, const char *path);
    /* fills in the names in any order */
    int (*list)(struct io *io, const char *path, struct io_names *out);
    int (*stat)(struct io *io, const char *path, struct io_stat *out);
    int (*unlink)(struct io *io, const char *path);
    int (*rename)(struct io *io, const char *from, const char *to);
    /* Exchanges two names atomically. Returns -ENOENT if one is missing, -EINVAL if the file system
     * cannot. NULL: the io cannot. */
    int (*exchange)(struct io *io, const char *a, const char *b);
    /* As io_medium_check. NULL: files are overwritten in place. */
    bool (*medium_check)(const char *path, char *why, size_t n);
    int (*dir_sync)(struct io *io, const char *path);
    int (*space)(struct io *io, const char *path, uint64_t *free_bytes,
                 uint64_t *total_bytes);
};

/* One transfer in flight. The queue owns `depth` of them. */
struct io_piece {
    struct io_req *req;
    struct io_file *file;
    enum io_op op;
    uint8_t *buf;
    size_t length;
    uint64_t offset;
    int buffer_idx;   /* the registered buffer that holds buf, or -1 */
    bool is_cached;   /* the piece is read through the page cache */
    int64_t ready_ns; /* the throttle lets the piece complete no earlier than this time */
    ssize_t result;   /* result of the transfer: bytes or a code, as from file_pread */
    struct io_piece *next;
};

struct io_queue_ops {
    /* opens the backend's part of a queue; may set q->backend */
    int (*open)(struct io_queue *q);
    void (*close)(struct io_queue *q);
    int (*register_buffers)(struct io_queue *q, const struct io_buffer *buffers,
                            unsigned n);
    /* Takes one piece, which flush starts. There is always room for `depth` pieces. */
    void (*start)(struct io_queue *q, struct io_piece *p);
    void (*flush)(struct io_queue *q);
    /* Flushes, and waits at most timeout_ns (negative: for ever) until at least one piece has
     * ended. *done is the list of ended pieces; NULL: none has ended in time. Called only while the
     * backend has a started piece. */
    int (*reap)(struct io_queue *q, int64_t timeout_ns, struct io_piece **done);
    /* Asks for an early end of all started pieces; NULL: they end by themselves without waiting. */
    void (*cancel)(struct io_queue *q);
    /* Returns a file descriptor that poll reports as readable once a piece has ended. NULL: the
     * backend has no such descriptor. */
    int (*fd)(const struct io_queue *q);
};

struct io {
    const char *name;
    const struct io_ops *ops;
    const struct io_queue_ops *queue_ops;
    struct io_throttle throttle[2]; /* throttles, by enum io_op */
    struct io_turn *turn;           /* NULL: the disk is not shared between ios */
    bool goes_first;
    /* time that erasures have worked and not yet rested, see io_erase.c */
    _Atomic int64_t erase_owes_ns;
};

void io_init(struct io *io, const char *name, const struct io_ops *ops,
             const struct io_queue_ops *queue_ops);
void io_deinit(struct io *io);

struct io_file {
    struct io *io;
    char *path;
    unsigned flags;
    /* the file does direct I/O; false if it was not asked for, or the file system refused it */
    bool direct;
    /* Alignment of buffer, offset and length that reads of a direct file need: at most IO_ALIGN. A
     * backend that leaves it 0 gets IO_ALIGN. */
    uint32_t read_align;
    atomic_int sync_failed;
};

/* Judges an attempt to transfer `n` bytes that returned r. Returns 0 with *step, the bytes of
 * progress (n: all is done), or the code of the failure. */
int io_attempt_result(const struct io_file *f, enum io_op op, size_t n, ssize_t r,
                      size_t *step);
/* Returns the code that functions of io.h return for a code of the system. An exhausted quota, and
 * a file that may not grow, become a full disk. */
int io_code(int rc);
int io_check_transfer(const struct io_file *f, enum io_op op, const void *buf, size_t n,
                      uint64_t offset);
int io_transfer_err(const struct io_file *f, enum io_op op, size_t n, uint64_t offset,
                    int code, struct err *err);

struct io_queue {
    struct io *io;
    const struct io_queue_ops *ops;
    void *backend; /* data of the backend (ops) */
    unsigned depth;
    struct io_piece *pieces;      /* [depth] */
    struct io_piece *free_pieces; /* list of pieces that hold no transfer */
    /* list of pieces that were transferred and that the throttle holds back */
    struct io_piece *held;
    unsigned n_started; /* pieces given to ops and not reaped */
    /* Requests not wholly cut into pieces; only the first may be cut in part. */
    struct io_req *waiting, **waiting_tail;
    /* list of complete requests that were not returned yet */
    struct io_req *done, **done_tail;
    unsigned n_done;
    /* number of requests submitted and not yet returned, including those in `done` */
    unsigned n_outstanding;
    struct io_buffer *buffers;
    unsigned n_buffers;
    struct io_alarm *alarm; /* a ring of it ends io_queue_await early; NULL: no alarm */
    bool has_rung;          /* the alarm ended the last io_queue_await */
};

#endif
