/* disks.h - the disks of the processes of a job as one file system of process 0; private to mpi/.
 *
 * A path with a component hcache.rankR is at process R modulo their number, any other at process 0
 * (tensor/peers.h).  Each process carries out calls on its own files:
 *
 *   disks.c       process 0: struct io_ops and struct io_queue_ops over calls
 *   disk_serve.c  every other process: two threads that carry calls out
 *
 *     thread of files     one call after another, each answered
 *     thread of pieces    reads and writes of queues, as many at once as the disk likes
 *
 * A sync is a call of the first kind, so it delays no read.  A throttle is each process's own. */
#ifndef MPI_DISKS_H
#define MPI_DISKS_H

#include "mpi/messages.h"
#include "io/io.h"

/* Tags of calls to the two threads. The pieces of a queue have a tag of their own. */
enum { TAG_FILES = TAG_LAST + 1, TAG_PIECES, TAG_QUEUES, LAST_TAG_OF_QUEUES = 32000 };

enum disk_op {
    DISK_LEAVE, /* the thread ends */
    DISK_LIFE,  /* process 0 lives; not answered */
    DISK_RATES, /* n: bytes/s of reads and of writes */
    DISK_OPEN,  /* n: flags, -; returns n: file, is direct, alignment of reads */
    DISK_CLOSE,
    DISK_PREAD, /* n: offset, bytes; data: the bytes */
    DISK_PWRITE,
    DISK_SYNC,
    DISK_SIZE,
    DISK_TRUNCATE,
    DISK_ALLOCATE,
    DISK_PUNCH,
    DISK_NEXT_DATA,
    DISK_LOCK,
    DISK_UNLOCK,
    DISK_MKDIR, /* from here on: data: a path, or two */
    DISK_MAKE_PRIVATE,
    DISK_LIST,
    DISK_STAT,
    DISK_UNLINK,
    DISK_RENAME,
    DISK_EXCHANGE,
    DISK_MEDIUM,
    DISK_DIR_SYNC,
    DISK_SPACE,
};

/* A call to the thread of files. `bytes` bytes of data follow in the message. */
struct disk_call {
    enum disk_op op;
    int tag;       /* of the answer */
    uint64_t file; /* the process's own address of the file */
    uint64_t n[2];
    size_t bytes;
};

/* An answer. `bytes` bytes of data follow. */
struct disk_answer {
    int64_t rc; /* a code, or the bytes of a transfer */
    uint64_t n[3];
    size_t bytes;
};

/* A call to the thread of pieces. The bytes of a write follow with the queue's tag. */
struct disk_piece {
    int tag; /* of the queue; -1: the thread ends */
    int id;
    bool is_write;
    uint64_t file, offset;
    size_t bytes;
};

/* The answer, with the queue's tag; the bytes of a read follow with the same tag. */
struct disk_done {
    int id;
    int64_t rc;
    size_t bytes;
};

/* Returns the files of this process, for processes above 0; of process 0, if disks_open was called,
 * else NULL. */
struct io *disks_own_io(void);
struct io *disks_io_of_process_0(void);
/* Finds a file by io_file_fd: its process, and its address there. Returns false if it is no file of
 * disks_open. */
bool disks_file(int fd, int *process, uint64_t *file);
/* Carries a call out on files of this process. *data has to be freed; NULL: the answer has none. */
void disk_run(struct io *io, const struct disk_call *c, const void *in,
              struct disk_answer *a, void **data);
/* Starts the two threads, and waits for their ends. */
void disk_threads_start(void);
void disk_threads_join(void);

/* Function of struct peers_plugin: makes the file system of all processes. `own` is that of process
 * 0, which the result owns. */
struct io *disks_open(struct io *own);
/* Ends the threads of the other processes. */
void disks_leave(int n_processes);

#endif
