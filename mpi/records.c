/* records.c - see records.h. */
#include "mpi/records.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "mpi/disks.h"
#include "mpi/group_impl.h"
#include "pack/pack.h"
#include "seal/seal.h"

/* SLICE_NS: else the thread waits a whole slice of the one that computes, and the disk with it. */
enum { SLOTS = 16, LOOK_NS = 50000, CARRY_NS = 20000, SLICE_NS = 100000 };

struct slot {
    struct record_read r;
    struct io_req req;
    uint8_t *bytes, *record; /* the record lies in `bytes`, unpacked behind what was read */
    size_t room;
    void *sending[2 * MAX_RANKS];
    int n_sending; /* bytes of parts on their way */
    int rc;
    uint64_t sum;
    bool is_used, is_read;
    bool is_answered; /* this process's part is stored, and process 0 knows */
};

struct records {
    struct io_queue *queue;
    int self, n_reading, n_used;
    struct slot slots[SLOTS];
    /* Reads that wait for a slot. No process waits for a slot itself: it must take the parts of the
     * others, whose slots wait for that. */
    struct waiting {
        struct waiting *next;
        struct record_read read;
    } * first, **last;
    /* Parts that others have sent, for memory that messages still use. Neither they nor this
     * process's own parts keep its reads from going on. */
    struct part {
        struct part *next;
        int from;
        struct record_part part;
    } * parts, **last_part;
};

size_t record_piece(const struct record_read *r, int i, int piece, size_t *at)
{
    size_t part = r->by_heads ? r->n_bytes / 2 / (size_t)r->n : piece == 0 ? r->n_bytes : 0;
    *at = r->by_heads ? (size_t)piece * (r->n_bytes / 2) + (size_t)i * part : 0;
    return part;
}

struct records *records_open(struct io *io, int self)
{
    struct records *r = xcalloc(1, sizeof *r);
    CHECK(io_queue_open(io, SLOTS, &r->queue, NULL) == 0);
    r->self = self;
    r->last = &r->first;
    r->last_part = &r->parts;
    return r;
}

void records_close(struct records *r)
{
    io_queue_close(r->queue);
    for (int i = 0; i < SLOTS; i++)
        if (r->slots[i].bytes != NULL)
            mem_unmap(r->slots[i].bytes, r->slots[i].room);
    free(r);
}

static void begin(struct records *r, struct slot *s, const struct record_read *read)
{
    size_t bytes = read->bytes + (read->form.is_packed ? read->n_bytes : 0);
    if (s->room < bytes) {
        if (s->bytes != NULL)
            mem_unmap(s->bytes, s->room);
        s->room = round_up(bytes, (size_t)1 << 20);
        s->bytes = mem_map(s->room);
        CHECK(s->bytes != NULL);
    }
    s->r = *read;
    s->is_used = true;
    s->is_read = s->is_answered = false;
    s->n_sending = 0;
    s->req = (struct io_req){.file = (struct io_file *)(uintptr_t)read->file,
                             .op = IO_READ,
                             .buf = s->bytes,
                             .length = read->bytes,
                             .offset = read->offset,
                             .user = s};
    struct io_req *req = &s->req;
    io_queue_submit(r->queue, &req, 1);
    r->n_reading++;
    r->n_used++;
}

void records_begin(struct records *r, const struct record_read *read)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    w->read = *read;
    *r->last = w;
    r->last = &w->next;
}

static void begin_waiting(struct records *r)
{
    for (struct slot *s = r->slots; r->first != NULL && s < r->slots + SLOTS; s++) {
        struct waiting *w = r->first;
        if (s->is_used)
            continue;
        r->first = w->next;
        if (r->first == NULL)
            r->last = &r->first;
        begin(r, s, &w->read);
        explicit_bzero(w, sizeof *w);
        free(w);
    }
}

/* Decrypts n bytes in place under the key of the form, and overwrites that. */
static bool unseal(struct store_form *f, uint8_t *bytes, size_t n)
{
    struct seal *seal = seal_of_runs(f->key);
    bool good = seal_run_open(seal, f->name, sizeof f->name, bytes, n, bytes);
    seal_free(seal);
    explicit_bzero(f->key, sizeof f->key);
    return good;
}

/* Makes the record of the bytes that were read. Returns the checksum of the stored bytes; another
 * number if they make no record. */
static uint64_t make_record(struct slot *s)
{
    struct store_form *f = &s->r.form;
    size_t n = f->n_bytes;
    s->record = s->bytes + f->begin;
    uint64_t sum = f->is_sealed ? f->checksum : checksum64(s->record, n);
    bool good = sum == f->checksum;
    if (f->is_sealed) {
        good = unseal(f, s->record, n);
        n -= SEAL_BYTES;
    }
    if (good && f->is_packed) {
        good = pack_undo(s->record, n, s->bytes + s->r.bytes, s->r.n_bytes);
        s->record = s->bytes + s->r.bytes;
    }
    return good || sum != f->checksum ? sum : ~sum;
}

static void *place(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static struct record_part part_of(const struct record_read *read, int i)
{
    struct record_part part = {read->tag, read->id, .after = read->after[i]};
    for (int p = 0; p < 2; p++) {
        size_t at;
        part.bytes[p] = record_piece(read, i, p, &at);
        part.dst[p] = read->dst[i] + at;
    }
    return part;
}

/* Sends each other rank but process 0 its part. */
static void hand_over(const struct records *r, struct slot *s)
{
    const struct record_read *read = &s->r;
    for (int i = 0; i < read->n; i++) {
        int to = read->first + i;
        struct record_call c = {.kind = RECORD_PART, .part = part_of(read, i)};
        if (to == 0 || to == r->self)
            continue;
        job_post(to, TAG_RECORDS, &c, sizeof c);
        for (int p = 0; p < 2; p++) {
            size_t at, n = record_piece(read, i, p, &at);
            if (n > 0)
                s->sending[s->n_sending++] = job_send_begin(to, TAG_PARTS, s->record + at,
                                                            n);
        }
    }
}

/* Stores this process's part. Returns false if messages that it has not carried out use the memory.
 */
static bool keep_own(const struct records *r, const struct slot *s)
{
    const struct record_read *read = &s->r;
    int i = r->self - read->first;
    if (i < 0 || i >= read->n)
        return true;
    if (r->self > 0 && serve_carried() < read->after[i])
        return false;
    struct record_part own = part_of(read, i);
    for (int p = 0; p < 2; p++) {
        size_t at, n = record_piece(read, i, p, &at);
        if (n > 0)
            memcpy(place(own.dst[p]), s->record + at, n);
    }
    return true;
}

/* Answers process 0, and sends it its part. */
static void answer(struct slot *s, int rc, uint64_t sum)
{
    const struct record_read *read = &s->r;
    struct record_answer a = {.id = read->id,
                              .is_done = true,
                              .has_part = rc == 0 && read->first == 0,
                              .rc = rc,
                              .sum = sum};
    job_send(0, read->tag, &a, sizeof a);
    for (int p = 0; a.has_part && p < 2; p++) {
        size_t at, n = record_piece(read, 0, p, &at);
        if (n > 0)
            s->sending[s->n_sending++] = job_send_begin(0, read->tag, s->record + at, n);
    }
}

bool records_step(struct records *r, int64_t wait_ns,
                  void (*done)(void *arg, const struct record_read *read, int rc,
                               uint64_t sum),
                  void *arg)
{
    struct io_req *ended[SLOTS];
    unsigned n = 0;
    begin_waiting(r);
    if (r->n_reading > 0)
        CHECK(io_queue_wait(r->queue, wait_ns > 0, SLOTS, wait_ns, ended, &n, NULL) == 0);
    for (unsigned i = 0; i < n; i++) {
        struct slot *s = ended[i]->user;
        int rc = s->req.result;
        s->sum = rc == 0 ? make_record(s) : 0;
        s->rc = rc;
        r->n_reading--;
        s->is_read = true;
        if (rc == 0)
            hand_over(r, s);
    }
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &r->slots[i];
        if (!s->is_used || !s->is_read)
            continue;
        if (!s->is_answered && (s->rc != 0 || keep_own(r, s))) {
            s->is_answered = true;
            if (done != NULL)
                done(arg, &s->r, s->rc, s->sum);
            else
                answer(s, s->rc, s->sum);
        }
        while (s->n_sending > 0 && job_send_ended(&s->sending[s->n_sending - 1]))
            s->n_sending--;
        if (s->is_answered && s->n_sending == 0) {
            s->is_used = false;
            r->n_used--;
        }
    }
    return r->n_used > 0 || r->first != NULL;
}

/* --- processes above 0 ------------------------------------------------------------------------ */

static void part_add(struct records *r, int from, const struct record_part *part)
{
    struct part *p = xcalloc(1, sizeof *p);
    *p = (struct part){.from = from, .part = *part};
    *r->last_part = p;
    r->last_part = &p->next;
}

/* Stores the parts whose memory no message uses any more, and tells process 0. Parts of one process
 * arrive in the order in which they were sent. */
static void store_parts(struct records *r)
{
    struct part *p;
    while ((p = r->parts) != NULL && serve_carried() >= p->part.after) {
        struct record_answer a = {.id = p->part.id};
        for (int i = 0; i < 2; i++)
            if (p->part.bytes[i] > 0)
                job_receive(p->from, TAG_PARTS, place(p->part.dst[i]), p->part.bytes[i]);
        job_send(0, p->part.tag, &a, sizeof a);
        r->parts = p->next;
        if (r->parts == NULL)
            r->last_part = &r->parts;
        free(p);
    }
}

static void *serve_records(void *unused)
{
    (void)unused;
    thread_wake_soon(SLICE_NS);
    struct records *r = records_open(disks_own_io(), job_self());
    struct record_call c = {0};
    for (bool is_busy = false; c.kind != RECORD_END;) {
        int from = is_busy ? job_has_any(TAG_RECORDS) : job_await_any(TAG_RECORDS);
        if (from >= 0) {
            job_receive(from, TAG_RECORDS, &c, sizeof c);
            if (c.kind == RECORD_PART)
                part_add(r, from, &c.part);
            else if (c.kind == RECORD_READ)
                records_begin(r, &c.read);
            explicit_bzero(&c.read, sizeof c.read);
        }
        store_parts(r);
        is_busy = records_step(r, from >= 0 ? 0 : LOOK_NS, NULL, NULL) || r->parts != NULL;
        if (is_busy && from < 0 && r->n_reading == 0)
            clock_sleep_ns(CARRY_NS);
    }
    records_close(r);
    return NULL;
}

static pthread_t thread;

void records_thread_start(void)
{
    CHECK(thread_create(&thread, serve_records, NULL) == 0);
}

void records_thread_join(void)
{
    (void)pthread_join(thread, NULL);
}

/* --- process 0 -------------------------------------------------------------------------------- */

struct batch {
    struct file_read *reads;
    int n, n_left; /* answers that have not come */
    int left[FILE_READER_MOST];
    void *user;
};

struct reader {
    struct file_reader base;
    struct group *g;
    struct records *own;
    int tag, n_batches;
    unsigned first, end; /* batches [first, end) are under way; modulo n_batches */
    struct batch *batches;
    struct record_read *reads; /* [n_batches * FILE_READER_MOST] by id */
};

static struct reader *reader_of(struct file_reader *r)
{
    return (struct reader *)r;
}

/* Counts an answer. After a read that failed no part comes. */
static void count(struct reader *r, int id, bool is_done, int rc, uint64_t sum)
{
    struct batch *b = &r->batches[id / FILE_READER_MOST];
    int i = id % FILE_READER_MOST, n = rc != 0 ? b->left[i] : 1;
    if (is_done) {
        b->reads[i].status = rc;
        b->reads[i].sum = sum;
    }
    b->left[i] -= n;
    b->n_left -= n;
}

static void own_done(void *arg, const struct record_read *read, int rc, uint64_t sum)
{
    count(arg, read->id, true, rc, sum);
}

static int reader_submit(struct file_reader *base, struct file_read *reads, int n,
                         void *user, struct err *err)
{
    struct reader *r = reader_of(base);
    struct group *g = r->g;
    int at = (int)(r->end % (unsigned)r->n_batches);
    struct batch *b = &r->batches[at];
    CHECK(r->end - r->first < (unsigned)r->n_batches && n <= FILE_READER_MOST);
    for (int i = 0, process; i < n; i++) {
        uint64_t file;
        if (!disks_file(reads[i].fd, &process, &file))
            return err_set(err, ERR_UNSUPPORTED, "the store is not that of all processes");
    }
    *b = (struct batch){.reads = reads, .n = n, .user = user};
    for (int i = 0; i < n; i++) {
        int process, id = at * FILE_READER_MOST + i, stage = group_stage(g, reads[i].dst);
        struct record_call c = {.kind = RECORD_READ,
                                .read = {.tag = r->tag,
                                         .id = id,
                                         .offset = reads[i].offset,
                                         .bytes = reads[i].bytes,
                                         .n_bytes = reads[i].n_bytes,
                                         .form = *reads[i].form,
                                         .by_heads = reads[i].by_heads,
                                         .first = stage * g->base.n_ranks,
                                         .n = g->base.n_ranks}};
        CHECK(disks_file(reads[i].fd, &process, &c.read.file));
        b->left[i] = 1;
        for (int k = 0; k < c.read.n; k++) {
            int q = c.read.first + k;
            c.read.dst[k] = (uint64_t)(uintptr_t)group_address(g, reads[i].dst, stage, k);
            c.read.after[k] = q > 0 ? peer_sent(g->rank[q]) : 0;
            b->left[i] += q > 0 && q != process;
        }
        b->n_left += b->left[i];
        r->reads[id] = c.read;
        if (process > 0)
            job_send(process, TAG_RECORDS, &c, sizeof c);
        else
            records_begin(r->own, &c.read);
    }
    r->end++;
    return 0;
}

static void take_answer(struct reader *r, int from)
{
    struct record_answer a;
    job_receive(from, r->tag, &a, sizeof a);
    const struct record_read *read = &r->reads[a.id];
    for (int p = 0; a.has_part && p < 2; p++) {
        size_t at, n = record_piece(read, 0, p, &at);
        if (n > 0)
            job_receive(from, r->tag, place(read->dst[0] + at), n);
    }
    count(r, a.id, a.is_done, (int)a.rc, a.sum);
}

static int reader_wait(struct file_reader *base, int64_t timeout_ns, void **user,
                       struct err *err)
{
    struct reader *r = reader_of(base);
    struct batch *b = &r->batches[r->first % (unsigned)r->n_batches];
    int64_t until = clock_now_ns() + timeout_ns;
    (void)err;
    *user = NULL;
    for (;;) {
        int from = job_has_any(r->tag);
        if (from >= 0)
            take_answer(r, from);
        bool is_busy = records_step(r->own, from >= 0 ? 0 : LOOK_NS, own_done, r);
        if (r->first == r->end || b->n_left == 0)
            break;
        if (clock_now_ns() > until)
            return 0;
        if (from < 0 && !is_busy)
            clock_sleep_ns(LOOK_NS);
    }
    if (r->first != r->end) {
        r->first++;
        *user = b->user;
    }
    return 0;
}

/* A process that hangs ends the job (job.c). */
static void reader_cancel(struct file_reader *base)
{
    (void)base;
}

static void reader_close(struct file_reader *base)
{
    struct reader *r = reader_of(base);
    while (records_step(r->own, LOOK_NS, own_done, r))
        ;
    records_close(r->own);
    free(r->batches);
    free(r->reads);
    free(r);
}

int records_reader_open(struct device *d, const struct buf *into, int n_batches,
                        struct file_reader **out, struct err *err)
{
    static atomic_uint next;
    (void)into;
    struct io *io = disks_io_of_process_0();
    if (io == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "the store has no share at the other processes");
    struct reader *r = xcalloc(1, sizeof *r);
    r->base = (struct file_reader){reader_submit, reader_wait, reader_cancel, reader_close};
    r->g = (struct group *)d;
    r->own = records_open(io, 0);
    r->tag = FIRST_TAG_OF_READERS + (int)(atomic_fetch_add(&next, 1) %
                                          (LAST_TAG_OF_READERS - FIRST_TAG_OF_READERS));
    r->n_batches = n_batches;
    r->batches = xcalloc((size_t)n_batches, sizeof *r->batches);
    r->reads = xcalloc((size_t)n_batches * FILE_READER_MOST, sizeof *r->reads);
    *out = &r->base;
    return 0;
}
