/* records.h - reads of records at the processes that have them, handed to the ranks that need them;
 * private to mpi/.
 *
 *   process 0 (file_reader)        the process that has the record        ranks of the layer's stage
 *   RECORD_READ            ----->  reads it from its disk, computes
 *                                  its checksum, decrypts and unpacks
 *                                  it, keeps its own part, sends the
 *                                  others theirs                    ----->  RECORD_PART: stored
 *                          <-----  RECORD_DONE (code, checksum)
 *                          <-----------------------------------------------  RECORD_STORED
 *
 * K and V of a whole chunk go to each rank by its heads, other records whole.  So no record passes
 * process 0, and all links carry the same (HCache paper, section 5).
 *
 * The call has the key of an encrypted record: that of its owner's records, which opens nothing
 * else.  The process overwrites it once the record is open.
 *
 * A rank's messages of TAG_CALL may still use the memory of an earlier record.  So a part has the
 * number of messages that the rank must have carried out before it is stored. */
#ifndef MPI_RECORDS_H
#define MPI_RECORDS_H

#include "io/io.h"
#include "mpi/messages.h"
#include "store/store.h"

/* The bytes of parts have TAG_PARTS; answers, and the parts of process 0, the reader's own tag. */
enum { TAG_RECORDS = 32001, TAG_PARTS, FIRST_TAG_OF_READERS, LAST_TAG_OF_READERS = 32700 };

struct record_read {
    int tag, id; /* of the answers */
    uint64_t file, offset;
    size_t bytes;   /* are read */
    size_t n_bytes; /* of the record */
    struct store_form form;
    bool by_heads;
    int first, n;              /* the ranks: processes [first, first + n) */
    uint64_t dst[MAX_RANKS];   /* the record's place at each */
    uint64_t after[MAX_RANKS]; /* messages that each has carried out before */
};

struct record_part {
    int tag, id;
    uint64_t dst[2];
    size_t bytes[2];
    uint64_t after;
};

enum record_kind { RECORD_READ, RECORD_PART, RECORD_END };
struct record_call {
    enum record_kind kind;
    struct record_read read;
    struct record_part part;
};

struct record_answer {
    int id;
    bool is_done;  /* the record was read; else a part was stored */
    bool has_part; /* that of process 0 follows */
    int64_t rc;
    uint64_t sum;
};

/* The reads of one process, for one thread. */
struct records;
struct records *records_open(struct io *io, int self);
void records_close(struct records *r);
void records_begin(struct records *r, const struct record_read *read);
/* Goes on with all reads. Returns whether any is under way. done is called for each that ended. */
bool records_step(struct records *r, int64_t wait_ns,
                  void (*done)(void *arg, const struct record_read *read, int rc,
                               uint64_t sum),
                  void *arg);
/* Returns the place and size of rank i's part: piece 0 or 1 of it; 0 bytes: there is none. */
size_t record_piece(const struct record_read *r, int i, int piece, size_t *at);

/* The threads of processes above 0. */
void records_thread_start(void);
void records_thread_join(void);
/* Opens the reader of a group (tensor.h, file_reader), over files of disks.h. */
int records_reader_open(struct device *d, const struct buf *into, int n_batches,
                        struct file_reader **out, struct err *err);

#endif
