/* shelf.c - see shelf.h.  The records in memory and their look-up; shelf_disk.c has the files. */
#include "api/shelf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/shelf_impl.h"
#include "seal/seal_file.h"

static const char *const status_names[BATCH_STATUSES] = {
    [BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress",
    [BATCH_FINALIZING] = "finalizing", [BATCH_COMPLETED] = "completed",
    [BATCH_FAILED] = "failed",         [BATCH_CANCELLING] = "cancelling",
    [BATCH_CANCELLED] = "cancelled"};

const char *batch_status_name(enum batch_status s)
{
    return status_names[s];
}

bool batch_has_ended(const struct shelf_batch *b)
{
    return b->status == BATCH_COMPLETED || b->status == BATCH_FAILED ||
           b->status == BATCH_CANCELLED;
}

/* --- lists of records ------------------------------------------------------------------------- */

size_t shelf_batch_bytes(const struct shelf_batch *b)
{
    return offsetof(struct shelf_batch, metadata) + strlen(b->metadata) + 1;
}

static void copy_batch(struct shelf_batch *out, const struct shelf_head *kept)
{
    memcpy(out, kept, shelf_batch_bytes((const struct shelf_batch *)kept));
}

void shelf_add_copy(struct shelf_list *l, const struct shelf_head *record, size_t n_bytes)
{
    GROW(l->at, l->n, l->cap);
    l->at[l->n++] = (struct shelf_head *)xmemdup(record, n_bytes);
}

static void list_remove(struct shelf_list *l, int i)
{
    free(l->at[i]);
    l->n--;
    memmove(&l->at[i], &l->at[i + 1], (size_t)(l->n - i) * sizeof *l->at);
}

static int by_age(const void *a, const void *b)
{
    const struct shelf_head *x = *(struct shelf_head *const *)a;
    const struct shelf_head *y = *(struct shelf_head *const *)b;
    int by = ORDER(x->created_s, y->created_s);
    return by != 0 ? by : strcmp(x->id, y->id);
}

void shelf_list_sort(struct shelf_list *l)
{
    if (l->at != NULL)
        qsort(l->at, (size_t)l->n, sizeof *l->at, by_age);
}

/* Returns the index of the tenant's record; -1: there is none. */
static int find(const struct shelf_list *l, const char *tenant, const char *id)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->at[i]->id, id) == 0 && strcmp(l->at[i]->tenant, tenant) == 0)
            return i;
    return -1;
}

static int not_found(const char *what, const char *id, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no %s '%.60s'", what, id);
}

static void name_it(struct shelf_head *h, const char *prefix, const char *tenant)
{
    uint8_t random[SHELF_ID_DIGITS / 2];
    *h = (struct shelf_head){.created_s = clock_wall_s()};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        CHECK(!"the system has no random numbers");
    int n = snprintf(h->id, sizeof h->id, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(h->id + n, sizeof h->id - (size_t)n, "%02x", random[i]);
    snprintf(h->tenant, sizeof h->tenant, "%s", tenant);
}

/* --- room ------------------------------------------------------------------------------------- */

void shelf_divide(struct shelf *s, int n_tenants, uint64_t tenant_bytes)
{
    int n = MAX(n_tenants, 1);
    s->tenant_files = MAX(SHELF_MAX_FILES / n, 1);
    s->tenant_batches = MAX(SHELF_MAX_BATCHES / n, 1);
    s->tenant_bytes = tenant_bytes > 0 ? tenant_bytes : s->max_bytes / (uint64_t)n;
}

/* Returns whether the record is the tenant's; with NULL always. */
static bool is_of(const struct shelf_head *h, const char *tenant)
{
    return tenant == NULL || strcmp(h->tenant, tenant) == 0;
}

static int n_of_tenant(const struct shelf_list *l, const char *tenant)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        n += is_of(l->at[i], tenant);
    return n;
}

/* [lock held] Returns the bytes of the tenant's files, answers and records; NULL: of all. */
static uint64_t used_bytes(const struct shelf *s, const char *tenant)
{
    uint64_t sum = 0;
    for (int i = 0; i < s->batches.n; i++)
        if (is_of(s->batches.at[i], tenant))
            sum += SHELF_RECORD_BYTES +
                   ((const struct shelf_batch *)s->batches.at[i])->growing_bytes;
    for (int i = 0; i < s->files.n; i++)
        if (is_of(s->files.at[i], tenant))
            sum += SHELF_RECORD_BYTES +
                   ((const struct shelf_file *)s->files.at[i])->n_bytes;
    return sum;
}

/* [lock held] Returns the bytes that the tenant may still add. */
static uint64_t room(const struct shelf *s, const char *tenant)
{
    uint64_t all = used_bytes(s, NULL), own = used_bytes(s, tenant);
    return MIN(s->max_bytes - MIN(all, s->max_bytes),
               s->tenant_bytes - MIN(own, s->tenant_bytes));
}

uint64_t shelf_room(struct shelf *s, const char *tenant)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = room(s, tenant);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* [lock held] */
static void set_growing(struct shelf *s, const struct shelf_batch *b, uint64_t n_bytes)
{
    int i = find(&s->batches, b->head.tenant, b->head.id);
    if (i >= 0)
        ((struct shelf_batch *)s->batches.at[i])->growing_bytes = n_bytes;
}

void shelf_set_growing(struct shelf *s, const struct shelf_batch *b, uint64_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    set_growing(s, b, n_bytes);
    pthread_mutex_unlock(&s->lock);
}

/* [lock held] Returns ERR_LIMIT if the tenant may not add a file of n bytes. */
static int check_room(const struct shelf *s, const char *tenant, uint64_t n,
                      struct err *err)
{
    int n_files = n_of_tenant(&s->files, tenant);
    if (n_files >= s->tenant_files || s->files.n >= SHELF_MAX_FILES)
        return err_set(err, ERR_LIMIT, "there are already %d files: delete some", n_files);
    if (n + SHELF_RECORD_BYTES > room(s, tenant))
        return err_set(err, ERR_LIMIT,
                       "there is no room for another %llu bytes: delete files, or raise "
                       "--files-bytes or --files-quota",
                       (unsigned long long)n);
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

int shelf_add_file(struct shelf *s, const char *tenant, const char *name, const char *bytes,
                   size_t n, struct shelf_file *out, struct err *err)
{
    *out = (struct shelf_file){.n_bytes = n, .purpose = "batch"};
    name_it(&out->head, "file-", tenant);
    snprintf(out->name, sizeof out->name, "%s", name);
    pthread_mutex_lock(&s->lock);
    int rc = check_room(s, tenant, n, err);
    if (rc == 0)
        rc = shelf_write(s, out->head.id, bytes, n, err);
    if (rc == 0)
        rc = shelf_write_file_record(s, out, err);
    if (rc == 0)
        shelf_add_copy(&s->files, &out->head, sizeof *out);
    else
        (void)shelf_erase(s, out->head.id, NULL); /* else the next start erases it */
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Decrypts the file *fd into a copy in memory. Closes *fd, and sets it to the copy's descriptor
 * unless it fails. n_bytes is the length that the file's record gives, and a shorter file is
 * damaged; UINT64_MAX: the length is not known. */
static int open_sealed(const struct shelf *s, const char *id, uint64_t n_bytes, int *fd,
                       struct err *err)
{
    struct seal_place place;
    int sealed = *fd, rc = seal_file_to_memory(s->seal, id, sealed, &place, fd, err);
    close(sealed);
    if (rc == 0 && n_bytes != UINT64_MAX && n_bytes != place.n_plain) {
        close(*fd);
        rc = err_set(err, ERR_CORRUPT, "%s is damaged: it is shorter than its record says",
                     id);
    }
    return rc;
}

int shelf_read_file(struct shelf *s, const char *tenant, const char *id,
                    struct shelf_file *out, int *fd, struct err *err)
{
    char path[SHELF_PATH_BYTES];
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    int i = find(&s->files, tenant, id);
    if (i < 0) {
        rc = not_found("file", id, err);
    } else {
        *out = *(const struct shelf_file *)s->files.at[i];
        shelf_path(s, id, path, sizeof path);
        if (fd != NULL &&
            ((*fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0 ||
             flock(*fd, LOCK_SH | LOCK_NB) != 0))
            rc = err_set(err, -errno, "%s: %s", id, strerror(errno));
        if (rc != 0 && *fd >= 0)
            close(*fd);
    }
    pthread_mutex_unlock(&s->lock);
    return rc == 0 && fd != NULL && s->seal != NULL
               ? open_sealed(s, id, out->n_bytes, fd, err)
               : rc;
}

int shelf_open_input(struct shelf *s, const char *id, char *path, size_t n, int *fd,
                     struct err *err)
{
    shelf_path(s, id, path, n);
    *fd = -1;
    if (s->seal == NULL)
        return 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    int rc = open_sealed(s, id, UINT64_MAX, fd, err);
    if (rc == 0)
        snprintf(path, n, "/proc/self/fd/%d", *fd);
    return rc;
}

/* [lock held] Returns whether a batch that has not ended reads the file. */
static bool is_in_use(const struct shelf *s, const char *id)
{
    for (int i = 0; i < s->batches.n; i++) {
        const struct shelf_batch *b = (const struct shelf_batch *)s->batches.at[i];
        if (!batch_has_ended(b) && strcmp(b->input, id) == 0)
            return true;
    }
    return false;
}

/* [lock held] Locks the file's bytes against shelf_read_file. Returns a descriptor that holds the
 * lock, -1 if there are no bytes, or -2 if they are being read. */
static int lock_bytes(const struct shelf *s, const char *id)
{
    int fd = openat(s->fd, id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return -2;
    }
    return fd;
}

/* [lock held] Deletes file i. The record goes first: without it the bytes are not a file, and the
 * next start erases them. */
static int delete_file(struct shelf *s, int i, const char *id, bool *is_pending,
                       struct err *err)
{
    int fd = lock_bytes(s, id);
    if (fd == -2)
        return err_set(err, ERR_BUSY, "the file '%.60s' is being read", id);
    int rc = shelf_drop_record(s, id, err);
    if (rc == 0) {
        list_remove(&s->files, i);
        *is_pending = shelf_erase(s, id, err) != 0 || shelf_sync(s, err) != 0;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int shelf_delete_file(struct shelf *s, const char *tenant, const char *id, bool *is_pending,
                      struct err *err)
{
    int rc = 0;
    *is_pending = false;
    pthread_mutex_lock(&s->lock);
    int i = find(&s->files, tenant, id);
    if (i < 0)
        rc = not_found("file", id, err);
    else if (is_in_use(s, id))
        rc = err_set(err, ERR_BUSY, "an unfinished batch reads the file '%.60s'", id);
    else
        rc = delete_file(s, i, id, is_pending, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* --- pages ------------------------------------------------------------------------------------ */

static bool is_listed(const struct shelf_page *page, const struct shelf_head *h,
                      bool is_file)
{
    if (strcmp(h->tenant, page->tenant) != 0)
        return false;
    return !is_file || page->purpose == NULL ||
           strcmp(((const struct shelf_file *)h)->purpose, page->purpose) == 0;
}

/* [lock held] Copies the records of a page to out[limit], which are `size` bytes apart. Returns
 * their number. *has_more: others follow. */
static int list(const struct shelf_list *l, const struct shelf_page *page, bool is_file,
                size_t size, char *out, bool *has_more)
{
    bool begun = page->after == NULL;
    int n = 0;
    *has_more = false;
    for (int k = 0; k < l->n; k++) {
        const struct shelf_head *h = l->at[page->oldest_first ? k : l->n - 1 - k];
        if (!is_listed(page, h, is_file))
            continue;
        if (begun && n == page->limit) {
            *has_more = true;
            break;
        }
        if (begun)
            memcpy(out + (size_t)n++ * size, h,
                   is_file ? size : shelf_batch_bytes((const struct shelf_batch *)h));
        begun = begun || strcmp(h->id, page->after) == 0;
    }
    return n;
}

int shelf_list_files(struct shelf *s, const struct shelf_page *page, struct shelf_file *out,
                     bool *has_more)
{
    pthread_mutex_lock(&s->lock);
    int n = list(&s->files, page, true, sizeof *out, (char *)out, has_more);
    pthread_mutex_unlock(&s->lock);
    return n;
}

int shelf_list_batches(struct shelf *s, const struct shelf_page *page,
                       struct shelf_batch *out, bool *has_more)
{
    pthread_mutex_lock(&s->lock);
    int n = list(&s->batches, page, false, sizeof *out, (char *)out, has_more);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* --- batches ---------------------------------------------------------------------------------- */

/* [lock held] Makes room for one more batch of the tenant, if the tenant has its share or the shelf
 * is full: forgets the oldest batch that has ended. It is one of the tenant's own if the tenant has
 * its share. Else it is one of the tenant with the most batches, the new one included, because one
 * tenant's many must not push out the few of another. */
static int make_place(struct shelf *s, const char *tenant, struct err *err)
{
    int oldest = -1, most = 0, n_own = n_of_tenant(&s->batches, tenant);
    bool has_share = n_own >= s->tenant_batches;
    if (!has_share && s->batches.n < SHELF_MAX_BATCHES)
        return 0;
    for (int i = 0; i < s->batches.n; i++) {
        const struct shelf_head *h = s->batches.at[i];
        if (!batch_has_ended((const struct shelf_batch *)h) ||
            (has_share && !is_of(h, tenant)) ||
            (oldest >= 0 && strcmp(h->tenant, s->batches.at[oldest]->tenant) == 0))
            continue;
        int n = n_of_tenant(&s->batches, h->tenant) + is_of(h, tenant);
        if (n > most) {
            most = n;
            oldest = i;
        }
    }
    if (oldest < 0)
        return err_set(err, ERR_LIMIT, "%d batches are already waiting", n_own);
    int rc = shelf_drop_record(s, s->batches.at[oldest]->id, err);
    if (rc == 0)
        list_remove(&s->batches, oldest);
    return rc;
}

int shelf_add_batch(struct shelf *s, const char *tenant, const char *input,
                    struct shelf_batch *b, struct err *err)
{
    struct shelf_head output, errors;
    name_it(&b->head, "batch_", tenant);
    name_it(&output, "file-", tenant);
    name_it(&errors, "file-", tenant);
    memcpy(b->output, output.id, sizeof b->output);
    memcpy(b->errors, errors.id, sizeof b->errors);
    snprintf(b->input, sizeof b->input, "%s", input);
    b->status = BATCH_VALIDATING;
    b->growing_bytes = b->wants_bytes = 0;
    b->held_code = 0;
    pthread_mutex_lock(&s->lock);
    int rc = find(&s->files, tenant, input) < 0 ? not_found("file", input, err) : 0;
    if (rc == 0)
        rc = make_place(s, tenant, err);
    if (rc == 0)
        rc = check_room(s, tenant, SHELF_RECORD_BYTES, err);
    if (rc == 0)
        rc = shelf_write_batch_record(s, b, err);
    if (rc == 0)
        shelf_add_copy(&s->batches, &b->head, shelf_batch_bytes(b));
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shelf_find_batch(struct shelf *s, const char *tenant, const char *id,
                     struct shelf_batch *out, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int i = find(&s->batches, tenant, id);
    if (i >= 0)
        copy_batch(out, s->batches.at[i]);
    pthread_mutex_unlock(&s->lock);
    return i < 0 ? not_found("batch", id, err) : 0;
}

/* [lock held] Writes the record of batch i durably, then changes the batch in memory. */
static int put(struct shelf *s, int i, const struct shelf_batch *b, struct err *err)
{
    int rc = shelf_write_batch_record(s, b, err);
    if (rc == 0) {
        struct shelf_batch *kept = (struct shelf_batch *)s->batches.at[i];
        memcpy(kept, b, offsetof(struct shelf_batch, growing_bytes));
    }
    return rc;
}

int shelf_put_batch(struct shelf *s, const struct shelf_batch *b, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int i = find(&s->batches, b->head.tenant, b->head.id);
    bool is_late = i >= 0 && b->status == BATCH_IN_PROGRESS &&
                   ((const struct shelf_batch *)s->batches.at[i])->status ==
                       BATCH_CANCELLING;
    int rc = i < 0 ? not_found("batch", b->head.id, err) : is_late ? 0 : put(s, i, b, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void shelf_count_batch(struct shelf *s, const struct shelf_batch *b)
{
    pthread_mutex_lock(&s->lock);
    int i = find(&s->batches, b->head.tenant, b->head.id);
    if (i >= 0) {
        struct shelf_batch *kept = (struct shelf_batch *)s->batches.at[i];
        kept->n_lines = b->n_lines;
        kept->n_done = b->n_done;
        kept->n_failed = b->n_failed;
    }
    pthread_mutex_unlock(&s->lock);
}

int shelf_cancel_batch(struct shelf *s, const char *tenant, const char *id,
                       struct shelf_batch *out, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    int i = find(&s->batches, tenant, id);
    if (i < 0) {
        rc = not_found("batch", id, err);
    } else {
        copy_batch(out, s->batches.at[i]);
        if (!batch_has_ended(out) && out->status != BATCH_CANCELLING) {
            out->at_s[BATCH_CANCELLING] = clock_wall_s();
            out->status = BATCH_CANCELLING;
            rc = put(s, i, out, err);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Counts the bytes in an encrypted file. */
static int sealed_bytes(const struct shelf *s, const char *id, uint64_t *out,
                        struct err *err)
{
    int fd = openat(s->fd, id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int rc = fd >= 0 ? seal_file_bytes(fd, out) : -errno;
    if (fd >= 0)
        close(fd);
    return rc == 0 ? 0 : err_set(err, rc, "%s: %s", id, strerror(-rc));
}

/* [lock held] Turns a batch's answers into a file. Sets *has to whether there are any. */
static int keep(struct shelf *s, const struct shelf_batch *b, const char *id,
                const char *what, bool *has, struct err *err)
{
    char path[SHELF_PATH_BYTES];
    struct stat st;
    struct shelf_file f = {.head = {.created_s = clock_wall_s()},
                           .purpose = "batch_output"};
    shelf_path(s, id, path, sizeof path);
    *has = stat(path, &st) == 0 && st.st_size > 0;
    if (!*has) {
        (void)shelf_erase(s, id, NULL); /* it is empty; else the next start erases it */
        return 0;
    }
    if (find(&s->files, b->head.tenant, id) >= 0)
        return 0; /* an earlier run made the file, and was killed afterwards */
    memcpy(f.head.id, id, sizeof f.head.id);
    memcpy(f.head.tenant, b->head.tenant, sizeof f.head.tenant);
    snprintf(f.name, sizeof f.name, "%s_%s.jsonl", b->head.id, what);
    f.n_bytes = (uint64_t)st.st_size;
    int rc = s->seal != NULL ? sealed_bytes(s, id, &f.n_bytes, err) : 0;
    if (rc == 0)
        rc = shelf_write_file_record(s, &f, err);
    if (rc == 0)
        shelf_add_copy(&s->files, &f.head, sizeof f);
    return rc;
}

int shelf_keep_answers(struct shelf *s, struct shelf_batch *b, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int rc = keep(s, b, b->output, "output", &b->has_output, err);
    if (rc == 0)
        rc = keep(s, b, b->errors, "error", &b->has_errors, err);
    if (rc == 0)
        set_growing(s, b, 0);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Returns whether a comes before b in the circular order that begins after `last`. */
static bool is_sooner(const char *last, const char *a, const char *b)
{
    bool a_wraps = strcmp(a, last) <= 0, b_wraps = strcmp(b, last) <= 0;
    return a_wraps != b_wraps ? b_wraps : strcmp(a, b) < 0;
}

void shelf_hold_batch(struct shelf *s, const struct shelf_batch *b, uint64_t n_bytes,
                      int code)
{
    pthread_mutex_lock(&s->lock);
    int i = find(&s->batches, b->head.tenant, b->head.id);
    if (i >= 0) {
        struct shelf_batch *kept = (struct shelf_batch *)s->batches.at[i];
        kept->wants_bytes = n_bytes;
        kept->held_ns = clock_now_ns();
        kept->held_code = code;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Returns whether the disk has n bytes free, and a record's. */
static bool disk_has(const struct shelf *s, uint64_t n)
{
    struct statvfs v;
    if (fstatvfs(s->fd, &v) != 0 || v.f_blocks == 0) /* it does not say */
        return true;
    return (uint64_t)v.f_bavail * v.f_frsize >= n + SHELF_RECORD_BYTES;
}

/* [lock held] Returns whether the batch waits for room that is not there yet. */
static bool is_held(const struct shelf *s, const struct shelf_batch *b)
{
    if (b->held_code == 0 || b->status == BATCH_CANCELLING)
        return false;
    if (room(s, b->head.tenant) < b->wants_bytes)
        return true;
    return b->held_code != ERR_LIMIT &&
           (clock_now_ns() - b->held_ns < SHELF_RETRY_S * INT64_C(1000000000) ||
            !disk_has(s, b->wants_bytes));
}

bool shelf_next_batch(struct shelf *s, const char *last, struct shelf_batch *out,
                      int *n_held)
{
    const struct shelf_batch *best = NULL;
    int held = 0;
    pthread_mutex_lock(&s->lock);
    /* batches are in order of creation, the oldest first */
    for (int i = 0; i < s->batches.n; i++) {
        const struct shelf_batch *b = (const struct shelf_batch *)s->batches.at[i];
        if (batch_has_ended(b))
            continue;
        if (is_held(s, b))
            held++;
        else if (best == NULL || is_sooner(last, b->head.tenant, best->head.tenant))
            best = b;
    }
    if (best != NULL)
        copy_batch(out, &best->head);
    pthread_mutex_unlock(&s->lock);
    if (n_held != NULL)
        *n_held = held;
    return best != NULL;
}
