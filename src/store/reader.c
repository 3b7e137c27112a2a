/* reader.c - reads records: one I/O queue per reader, requests to all devices at once.
 *
 * A record in DRAM (in the DRAM backend, or a copy in the tier) is handed out where it lies and
 * completes at once. A record in a file becomes one request of whole blocks. Requests live in
 * slots; a reader has as many slots as it ever had requests in flight at once. The hit pins the
 * record's extent, so the extent stays until the caller releases the hit, which must not happen
 * before the read has come back. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "store/store_impl.h"

struct slot {
    struct io_req req;
    struct store_read *read;
    struct slot *next;
};

struct store_reader {
    struct store *store;
    struct io_queue *queue; /* NULL in the DRAM backend */
    struct slot *idle;
    struct slot *done, **done_end; /* slots that completed without I/O, oldest first */
    bool uses_dram;                /* takes records from copies in the DRAM tier */
    bool uses_page_cache;
    /* Time for which store_reader_await has waited since the last completion. */
    int64_t silent_ns;
};

int store_reader_open(struct store *s, int depth, void *staging, size_t staging_bytes,
                      struct store_reader **out, struct err *err)
{
    struct store_reader *r = xcalloc(1, sizeof *r);
    r->store = s;
    r->done_end = &r->done;
    if (s->home.io != NULL) {
        int rc = io_queue_open(s->home.io, (unsigned)depth, &r->queue, err);
        if (rc != 0) {
            free(r);
            return rc;
        }
        struct io_buffer buffer = {staging, staging_bytes};
        /* if the memory cannot be registered (locked memory limit), reads are only slower */
        if (staging != NULL)
            (void)io_queue_register_buffers(r->queue, &buffer, 1, NULL);
    }
    *out = r;
    return 0;
}

void store_reader_use_dram(struct store_reader *r)
{
    r->uses_dram = true;
}

void store_reader_use_page_cache(struct store_reader *r)
{
    r->uses_page_cache = true;
}

static void slots_free(struct slot *slot)
{
    while (slot != NULL) {
        struct slot *next = slot->next;
        free(slot);
        slot = next;
    }
}

void store_reader_close(struct store_reader *r)
{
    if (r == NULL)
        return;
    struct io_req *done[16];
    unsigned n = 1;
    if (r->queue != NULL)
        io_queue_cancel(r->queue); /* the results are no longer needed */
    while (r->queue != NULL && n > 0 && io_queue_outstanding(r->queue) > 0) {
        if (io_queue_wait(r->queue, 1, 16, -1, done, &n, NULL) != 0)
            break;
        for (unsigned i = 0; i < n; i++)
            free(done[i]->user);
    }
    io_queue_close(r->queue);
    slots_free(r->idle);
    slots_free(r->done);
    free(r);
}

static struct slot *slot_take(struct store_reader *r)
{
    struct slot *slot = r->idle;
    if (slot == NULL)
        return xcalloc(1, sizeof *slot);
    r->idle = slot->next;
    return slot;
}

/* [lock] Returns the record of a read, and sets *extent. LIVE extents go before DEAD ones. */
static const struct chunk_record *record_find(const struct store_read *read,
                                              const struct extent **extent)
{
    const struct chunk_node *n = read->hit->impl;
    const struct chunk_record *found = NULL;
    for (const struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state == EXTENT_PENDING || x->records == NULL)
            continue;
        for (int i = 0; i < x->n_records; i++) {
            if (x->records[i].layer == read->layer && x->records[i].kind == read->kind &&
                (found == NULL || x->state == EXTENT_LIVE)) {
                found = &x->records[i];
                *extent = x;
            }
        }
    }
    return found;
}

/* Completes a read without I/O: because its record is in memory, or because of a fault. */
static void slot_done(struct store_reader *r, struct slot *slot, int status)
{
    slot->read->status = status;
    slot->next = NULL;
    *r->done_end = slot;
    r->done_end = &slot->next;
}

/* [lock] Finds the record of a read, and fills in the read's fields. Returns 0 with *x and *offset,
 * ERR_NOT_FOUND, or ERR_MISMATCH if the record may need more room than dst_bytes. */
static int locate(struct store *s, struct store_read *read, const struct extent **x,
                  uint64_t *offset)
{
    CHECK(read->hit->impl != NULL && read->layer >= 0 && read->layer < STORE_MAX_LAYERS);
    const struct chunk_record *record = record_find(read, x);
    read->copy = NULL;
    read->was_cached = false;
    if (record == NULL)
        return ERR_NOT_FOUND;
    if (read->dst_bytes > 0 ? chunk_record_span(record) > read->dst_bytes
                            : record->is_tight || s->home.seal != NULL)
        return ERR_MISMATCH;
    *offset = (*x)->offset + record->offset;
    read->store = s;
    read->n_bytes = record->n_bytes;
    read->checksum = record->checksum;
    read->is_packed = record->is_packed;
    read->is_sealed = s->home.seal != NULL;
    read->of_owner = owner_keys_find(s->home.owners,
                                     s->catalog.owners[(*x)->node->owner_idx].tag);
    read->status = 0;
    return 0;
}

/* [lock] Serves a read from the extent's copy in DRAM. Returns false if the extent has no copy. */
static bool copy_take(struct store *s, struct store_read *read, const struct extent *x,
                      uint64_t offset)
{
    read->copy = tier_read(s->tier, x, read->n_bytes);
    if (read->copy != NULL)
        read->bytes = tier_at(s->tier, read->copy, offset - x->offset);
    return read->copy != NULL;
}

/* [lock] Turns a read into a request to the disk. Returns false if the read is complete without
 * one. */
static bool read_start(struct store_reader *r, struct slot *slot)
{
    struct store *s = r->store;
    struct store_read *read = slot->read;
    const struct extent *x = NULL;
    uint64_t offset = 0;
    int rc = locate(s, read, &x, &offset);
    if (rc != 0) {
        slot_done(r, slot, rc);
        return false;
    }
    if (r->uses_dram && copy_take(s, read, x, offset)) {
        slot_done(r, slot, 0);
        return false;
    }
    s->counts.read_bytes += read->n_bytes;
    struct io_file *file = s->media->ops->file(s->media, x->device, x->segment);
    if (file == NULL) {
        read->bytes = s->media->ops->at(s->media, x->device, x->segment, offset);
        slot_done(r, slot, 0);
        return false;
    }
    CHECK((uintptr_t)read->dst % STORE_ALIGN == 0);
    uint64_t from = offset;
    size_t n_bytes = media_sectors(file, read->n_bytes, &from);
    read->bytes = (uint8_t *)read->dst + (offset - from);
    slot->req = (struct io_req){
        .file = file,
        .op = IO_READ,
        .buf = read->dst,
        .length = n_bytes,
        .offset = from,
        .may_hit = r->uses_page_cache && !atomic_load(&s->distrusts_page_cache),
        .user = slot,
    };
    return true;
}

void store_reader_submit(struct store_reader *r, struct store_read *const *reads, int n)
{
    enum { AT_ONCE = 64 };
    struct io_req *reqs[AT_ONCE];
    for (int i = 0; i < n;) {
        unsigned n_reqs = 0;
        pthread_mutex_lock(&r->store->lock);
        for (int end = n - i < AT_ONCE ? n : i + AT_ONCE; i < end; i++) {
            struct slot *slot = slot_take(r);
            slot->read = reads[i];
            if (read_start(r, slot))
                reqs[n_reqs++] = &slot->req;
        }
        pthread_mutex_unlock(&r->store->lock);
        if (n_reqs > 0)
            io_queue_submit(r->queue, reqs, n_reqs);
    }
}

static void slot_give(struct store_reader *r, struct slot *slot)
{
    slot->next = r->idle;
    r->idle = slot;
}

/* Hands out reads that completed at once. */
static int done_take(struct store_reader *r, struct store_read **done, int max)
{
    int n = 0;
    while (n < max && r->done != NULL) {
        struct slot *slot = r->done;
        r->done = slot->next;
        if (r->done == NULL)
            r->done_end = &r->done;
        done[n++] = slot->read;
        slot_give(r, slot);
    }
    return n;
}

void store_reader_listen(struct store_reader *r, struct io_alarm *alarm)
{
    if (r->queue != NULL)
        io_queue_listen(r->queue, alarm);
}

/* Cancels all requests after stuck_ns without a completion: a device that does not answer is not
 * waited for. The time without a completion is added up over the calls. */
int store_reader_await(struct store_reader *r, int64_t most_ns, struct err *err)
{
    bool is_done = r->done != NULL || r->queue == NULL ||
                   io_queue_outstanding(r->queue) == 0;
    int rc = 0;
    bool has_rung = false;
    for (int64_t waited_ns = 0, ns; rc == 0 && !is_done && !has_rung && waited_ns < most_ns;
         waited_ns += ns) {
        int64_t left_ns = most_ns - waited_ns, until_stuck_ns = r->store->home.stuck_ns;
        until_stuck_ns -= r->silent_ns;
        int64_t begin_ns = clock_now_ns();
        rc = io_queue_await(r->queue, MIN(left_ns, until_stuck_ns), &is_done, err);
        ns = clock_now_ns() - begin_ns;
        has_rung = io_queue_has_rung(r->queue);
        r->silent_ns = is_done ? 0 : r->silent_ns + ns;
        if (rc == 0 && !is_done && r->silent_ns >= r->store->home.stuck_ns) {
            r->silent_ns = 0;
            io_queue_cancel(r->queue);
        }
    }
    return rc;
}

int store_reader_poll(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err)
{
    enum { AT_ONCE = 64 };
    struct io_req *reqs[AT_ONCE];
    unsigned n_reqs = 0;
    int n = done_take(r, done, max);
    *n_done = n;
    if (n == max || r->queue == NULL || io_queue_outstanding(r->queue) == 0)
        return 0;
    unsigned room = (unsigned)(max - n) < AT_ONCE ? (unsigned)(max - n) : AT_ONCE;
    int rc = io_queue_wait(r->queue, 0, room, 0, reqs, &n_reqs, err);
    for (unsigned i = 0; i < n_reqs; i++) {
        struct slot *slot = reqs[i]->user;
        slot->read->was_cached = reqs[i]->cached_bytes > 0;
        slot->read->status = reqs[i]->result == -ECANCELED ? -ETIMEDOUT : reqs[i]->result;
        r->silent_ns = 0;
        if (reqs[i]->result != 0)
            atomic_fetch_add_explicit(&r->store->counts.n_read_failures, 1,
                                      memory_order_relaxed);
        done[n++] = slot->read;
        slot_give(r, slot);
    }
    *n_done = n;
    return rc;
}

int store_reader_wait(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err)
{
    *n_done = 0;
    int rc = store_reader_await(r, INT64_MAX, err);
    return rc == 0 ? store_reader_poll(r, done, max, n_done, err) : rc;
}

int store_reader_read(struct store_reader *r, struct store_read *read, struct err *err)
{
    struct store_read *done;
    int n_done = 0;
    store_reader_submit(r, &read, 1);
    int rc = store_reader_wait(r, &done, 1, &n_done, err);
    return rc == 0 ? store_read_check(read, err) : rc;
}

void store_read_release(struct store_read *read)
{
    if (read->copy == NULL)
        return;
    pthread_mutex_lock(&read->store->lock);
    tier_release(read->store->tier, read->copy);
    pthread_mutex_unlock(&read->store->lock);
    read->copy = NULL;
}

void store_in_dram(struct store *s, const struct store_hit *hits, int n, bool *in_dram)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++)
        in_dram[i] = tier_has_all(s->tier, hits[i].impl);
    pthread_mutex_unlock(&s->lock);
}

/* --- reads without store_reader --------------------------------------------------------------- */

bool store_has_files(const struct store *s)
{
    return s->home.lock_file != NULL && io_file_fd(s->home.lock_file) >= 0;
}

int64_t store_stuck_ns(const struct store *s)
{
    return s->home.stuck_ns;
}

int store_read_place(struct store *s, struct store_read *read, struct store_place *out)
{
    const struct extent *x = NULL;
    *out = (struct store_place){.fd = -1};
    pthread_mutex_lock(&s->lock);
    int rc = locate(s, read, &x, &out->offset);
    struct io_file *file = rc == 0 ? s->media->ops->file(s->media, x->device, x->segment)
                                   : NULL;
    /* A record with a copy in DRAM is left to a store_reader, which reads the copy. */
    bool has_copy = rc == 0 && x->copy != NULL;
    pthread_mutex_unlock(&s->lock);
    read->bytes = NULL;
    if (file != NULL)
        out->fd = io_file_fd(file);
    if (rc == 0 &&
        (out->fd < 0 || has_copy ||
         (read->is_sealed && (read->of_owner == NULL || read->n_bytes < SEAL_BYTES))))
        rc = ERR_UNSUPPORTED;
    if (rc != 0)
        return rc;
    uint32_t begin = (uint32_t)(out->offset % STORE_ALIGN);
    out->offset -= begin;
    out->bytes = round_up(begin + read->n_bytes, STORE_ALIGN);
    out->form = (struct store_form){.begin = begin,
                                    .n_bytes = read->n_bytes,
                                    .is_packed = read->is_packed,
                                    .is_sealed = read->is_sealed,
                                    .checksum = read->checksum};
    if (read->is_sealed)
        seal_runs_key(read->of_owner, out->form.key);
    chunk_record_name(&read->hit->key, read->layer, read->kind, read->is_packed,
                      out->form.name);
    return 0;
}

void store_read_end(struct store_read *read, int status)
{
    struct store *s = read->store;
    read->status = status;
    if (status != 0) {
        atomic_fetch_add_explicit(&s->counts.n_read_failures, 1, memory_order_relaxed);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->counts.read_bytes += read->n_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* Reads a record again that came from the page cache and is damaged, directly. From then on the
 * store does not use the page cache: its pages differ from the disk. */
static int read_directly(const struct store_read *read, struct err *err)
{
    struct store *s = read->store;
    struct store_read again = *read;
    const struct extent *x = NULL;
    uint64_t offset = 0;
    atomic_store(&s->distrusts_page_cache, true);
    pthread_mutex_lock(&s->lock);
    int rc = locate(s, &again, &x, &offset);
    struct io_file *file = rc == 0 ? s->media->ops->file(s->media, x->device, x->segment)
                                   : NULL;
    pthread_mutex_unlock(&s->lock);
    if (file == NULL)
        return err_set(err, rc != 0 ? rc : ERR_NOT_FOUND, "a record is gone");
    log_warn("%s: a record in the page cache is damaged; records are read from the disk",
             io_file_path(file));
    size_t n_bytes = media_sectors(file, read->n_bytes, &offset);
    return io_file_pread(file, read->dst, n_bytes, offset, err);
}

size_t store_read_room(const struct store *s, size_t n_bytes)
{
    return round_up(n_bytes, STORE_ALIGN) +
           (s != NULL && s->home.seal != NULL ? STORE_ALIGN : 0);
}

double store_unseal_bytes_per_s(const struct store *s)
{
    return s->home.seal != NULL ? seal_open_bytes_per_s(s->home.seal) : 0;
}

/* Decrypts a record in place and moves it to dst. Returns false if the record was changed. */
static bool unseal(struct store_read *read)
{
    uint8_t name[STORE_NAME_BYTES], *at = read->dst;
    if (store_read_is_in_dst(read)) /* behind the beginning of its sector */
        at += read->bytes - at;
    chunk_record_name(&read->hit->key, read->layer, read->kind, read->is_packed, name);
    if (read->of_owner == NULL ||
        !seal_run_open(read->of_owner, name, sizeof name, read->bytes, read->n_bytes, at))
        return false;
    read->is_sealed = false;
    read->n_bytes -= SEAL_BYTES;
    read->bytes = memmove(read->dst, at, read->n_bytes);
    read->checksum = checksum64(read->bytes, read->n_bytes);
    return true;
}

/* Decrypts a sealed record. Returns the checksum of the record's bytes, or another value than
 * read->checksum if they do not open. */
static uint64_t sum_of(struct store_read *read)
{
    if (!read->is_sealed)
        return checksum64(read->bytes, read->n_bytes);
    return unseal(read) ? read->checksum : ~read->checksum;
}

int store_read_check(struct store_read *read, struct err *err)
{
    if (read->status != 0)
        return err_set(err, read->status, "a record could not be read: %s",
                       err_name(read->status));
    uint64_t sum = sum_of(read);
    if (read->was_cached && sum != read->checksum) {
        int rc = read_directly(read, err);
        if (rc != 0)
            return rc;
        sum = sum_of(read);
    }
    return store_read_judge(read, sum, err);
}

int store_read_judge(const struct store_read *read, uint64_t sum, struct err *err)
{
    if (store_has_bug(STORE_BUG_NO_CHECK) || sum == read->checksum)
        return 0;
    atomic_fetch_add_explicit(&read->store->counts.n_checksum_failures, 1,
                              memory_order_relaxed);
    if (read->copy != NULL) {
        pthread_mutex_lock(&read->store->lock);
        tier_distrust(read->store->tier, read->copy);
        pthread_mutex_unlock(&read->store->lock);
        return err_set(err, -EAGAIN, "the copy in DRAM of chunk %u is damaged",
                       read->hit->chunk_idx);
    }
    return err_set(err, ERR_CORRUPT, "layer %d, %s of chunk %u: its checksum does not hold",
                   read->layer,
                   read->kind == STORE_HIDDEN ? "hidden state" : "keys and values",
                   read->hit->chunk_idx);
}
