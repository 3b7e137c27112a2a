/* messages.h - messages between the processes of a group; private to mpi/.
 *
 *   group.c   devices as one (tensor/group.h), group_ops.c its operations; call.h an operation as a
 *             value
 *   job.c     joins the job; sends, waits and gathers by MPI
 *   message.c a call as bytes
 *   peer.c    a peer as a device of process 0: calls become messages
 *   serve.c   carries the messages out
 *   disks.h   the files of all processes; its messages are others
 *
 * A message is a struct message and then its parts: arrays of host memory, each padded to 16 bytes.
 * All processes run one program on one kind of machine, so a call travels as it lies in memory. */
#ifndef MPI_MESSAGES_H
#define MPI_MESSAGES_H

#include <stdint.h>

#include "mpi/call.h"
#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/peers_plugin.h"

/* Kinds of calls beside the operations. */
enum {
    CALL_OPEN =
        N_OPERATIONS, /* the device; host: its name, and its isa; n: threads, tag; answered */
    CALL_CLOSE,
    CALL_LEAVE,
    CALL_ALLOC,  /* n: address, bytes, tag; answered */
    CALL_FREE,   /* n: address, bytes */
    CALL_STREAM, /* n: kind */
    CALL_STREAM_END,
    CALL_SYNC,    /* n: -, -, tag; answered */
    CALL_RECOVER, /* the same */
    CALL_WRITE,   /* host: the pieces, which go to p[0]; n: pieces, bytes of each, stride */
    CALL_READ, /* answered with the pieces at p[0]; n: pieces, bytes of each, stride, tag */
    CALL_COPY, /* p[0] = p[1]; n: pieces, bytes of each, strides of both */
    CALL_GIVE, /* sends bytes at p[0] to a process; n: bytes, tag, process */
    CALL_TAKE, /* the other end */
    CALL_GATHER, /* m: out, in; n: first process, processes */
    CALL_FILE, /* host: the hash of a model's files, and their name; n: tensors, -, tag; answered */
    CALL_ROWS, /* w; n: its first row, number of the tensor, its first row, rows */
};

/* The parts: the call's `host`, and of its batch positions, first rows and tables. */
enum { PART_HOST, PART_POS, PART_SEQ_ROW, PART_TABLES, N_PARTS };

struct message {
    struct call c;
    int32_t stream; /* the peer's stream */
    int tag;        /* of the answer to all_finite */
    struct ragged r;
    size_t part_bytes[N_PARTS];
};

/* Messages one after another. */
struct messages {
    uint8_t *at;
    size_t bytes, room;
};

struct answer {
    int rc;
    char why[160];
};

/* Tags of messages: calls, parts of a gather, and answers and copies, whose tags count up from
 * TAG_FIRST. */
enum { TAG_CALL = 1, TAG_GATHER, TAG_FIRST, TAG_LAST = 30000 };

/* --- job.c; any thread may call these --- */
enum { MOST_PROCESSES = 16 };
#define MOST_MESSAGE_BYTES ((size_t)64 << 20)

int job_join(int *index, int *n, struct err *err);
void job_leave(void); /* process 0 tells the others to end */
int job_processes(void);
int job_self(void);
/* Returns a tag that no other message on its way has. */
int job_tag(void);
/* Sends a message, and waits until its bytes have left. Messages of one tag to one process arrive
 * in order. */
void job_send(int to, int tag, const void *bytes, size_t n);
/* The same, without waiting if the message is small: a copy is sent, which stays for a while. */
void job_post(int to, int tag, const void *bytes, size_t n);
/* Waits for a message and returns its size; sleeps if none comes for a while. */
size_t job_await(int from, int tag);
/* Returns whether a message has come; the second, who has sent it, or -1. */
bool job_has(int from, int tag);
/* Waits for a message of any process, which is returned. */
int job_await_any(int tag);
int job_has_any(int tag);
/* Begins to send. job_send_ended returns whether the bytes have left, and sets *sending to NULL. */
void *job_send_begin(int to, int tag, const void *bytes, size_t n);
bool job_send_ended(void **sending);
/* Takes a message of n bytes. */
void job_receive(int from, int tag, void *bytes, size_t n);
/* Sets out [n][n_processes * c] to the `in` [n][c] of processes [first, first + n_processes), side
 * by side. They all call it in the same order. */
void job_gather(int first, int n_processes, struct mat out, struct mat in);

/* The bytes of a part in a message. */
static inline size_t part_room(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

/* Returns the number of blocks in the table of sequence s. */
static inline int64_t ragged_blocks(const struct ragged *r, int s)
{
    int32_t end = r->seq_row[s + 1];
    return end > r->seq_row[s] ? r->pos[end - 1] / KV_BLOCK_TOKENS + 1 : 0;
}

/* --- message.c --- */
/* Adds a message with copies of all that its call points to. */
void message_add(struct messages *to, const struct message *m);
/* Returns the message at `at`, whose call then points to the message's parts, and the bytes that it
 * takes. *tables is memory for pointers to the batch's tables; the caller frees it. */
struct message *message_open(uint8_t *at, size_t *bytes, const int32_t ***tables);

/* Begin and end the process `index`, where mpirun has not done so: in tests. */
void job_begin_process(int index);
void job_end_process(int index);

/* --- peer.c --- */
/* Opens the peer `index` as a device. */
int peer_open(const char *name, const struct device_opts *o, int index, struct pool *pool,
              struct device **out, struct err *err);
/* Gathers on the n ranks of a stage, which are the processes from `first` on, by their own
 * addresses and streams s of the group's stream. One thread at a time may call it. */
int peer_gather(struct stream *group, struct stream *const *s, int n, int first,
                const struct mat *out, const struct mat *in);
/* Returns whether the stream is a peer's. */
bool peer_is(const struct stream *s);
/* Returns how many messages were sent to a peer, and by serve.c: how many were carried out here. */
uint64_t peer_sent(struct device *d);
uint64_t serve_carried(void);
/* Opens file readers of groups; NULL: they have none. Set by job.c. */
extern int (*group_reader_open)(struct device *d, const struct buf *into, int n_batches,
                                struct file_reader **out, struct err *err);
/* Sends an operation to a peer. Returns the stream's sticky error. */
int peer_run(struct stream *s, const struct call *c);
/* Copies between two devices of which one at least is a peer, in the order of both streams. */
int peer_copy_between(struct stream *to, void *dst, struct stream *from, const void *src,
                      size_t bytes);
/* Functions of struct peers_plugin. */
bool group_have_file(struct device *d, const char *source, int n_tensors,
                     const struct sha256 *hash, struct err *why);
int peer_read_rows(struct stream *s, const struct weight *w, int64_t dst_row, int number,
                   int64_t row, int64_t n);

/* The functions of struct peers_plugin for groups. */
#define GROUP_FUNCTIONS                                                                    \
    .group_open = group_make, .stage_alloc = group_stage_alloc,                            \
    .rank_stream = group_rank_stream, .rank_address = group_rank_address,                  \
    .all_gather = group_all_gather, .have_file = group_have_file,                          \
    .read_rows = peer_read_rows, .kv_chunks_up = group_kv_chunks_up,                       \
    .kv_rows_down = group_kv_rows_down

/* --- rows.c --- */
struct rows;
/* Opens a model's files on this machine. Returns an error unless they have this many tensors and
 * this hash, which may take reading them once. */
int rows_open(const char *source, int n_tensors, const struct sha256 *hash,
              struct device *dev, struct rows **out, struct err *err);
void rows_close(struct rows *r); /* NULL is allowed */
/* Reads rows [row, row + n) of a tensor into rows from dst_row on of a matrix. */
int rows_read(struct rows *r, struct stream *s, struct weight *to, int64_t dst_row,
              int number, int64_t row, int64_t n);

/* --- serve.c --- */
/* Carries out messages of process 0 until it leaves. */
int serve(void);

#endif
