/* shelf.h - uploaded files and the records of batches, in one folder.
 *
 *     file-ID           the bytes of a file, or the answers of a batch that is not finished
 *     file-ID.json      its record: without it the bytes are no file
 *     batch_ID.json     the record of a batch
 *     *.new             was being written when the process ended; shelf_open removes it
 *
 * Records are read when the folder is opened and then kept in memory.  All functions may be called
 * by any thread; functions that change something wait for the disk.
 *
 * Invariants:
 *  1. A record is written to a new file, synced, and renamed; so a crash leaves the
 *     old or the new one.
 *  2. What is found belongs to the tenant that asks; others get ERR_NOT_FOUND, as for
 *     what is not there.
 *  3. All bytes together stay within max_bytes; a record counts as SHELF_RECORD_BYTES. */
#ifndef BATCH_SHELF_H
#define BATCH_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    SHELF_ID_BYTES = 48,
    SHELF_ID_DIGITS = 24, /* hexadecimal, behind "file-" or "batch_" */
    SHELF_TENANT_BYTES = 72,
    SHELF_NAME_BYTES = 256,
    SHELF_RECORD_BYTES = 4096,
    SHELF_MAX_FILES = 10000,
    SHELF_MAX_BATCHES = 1000, /* beyond, the oldest that has finished is forgotten */
    SHELF_MAX_METADATA = 16 << 10,
};

/* Of files and batches alike. */
struct shelf_head {
    char id[SHELF_ID_BYTES];
    char tenant[SHELF_TENANT_BYTES];
    int64_t created_s;
};

struct shelf_file {
    struct shelf_head head;
    char name[SHELF_NAME_BYTES];
    char purpose[16]; /* "batch", "batch_output" */
    uint64_t n_bytes;
};

enum batch_status {
    BATCH_VALIDATING, /* it waits */
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_COMPLETED,
    BATCH_FAILED,
    BATCH_CANCELLING,
    BATCH_CANCELLED,
    BATCH_STATUSES
};

/* A batch.  Of its output and errors, which are files once it has ended, the ids
 * are chosen before. */
struct shelf_batch {
    struct shelf_head head;
    enum batch_status status;
    int64_t at_s[BATCH_STATUSES]; /* when it got that status; 0: never */
    char endpoint[64];
    char input[SHELF_ID_BYTES], output[SHELF_ID_BYTES], errors[SHELF_ID_BYTES];
    bool has_output, has_errors; /* they are files */
    int64_t n_lines, n_done, n_failed;
    char error_code[32], error_message[300]; /* of one that has failed; else "" */
    char metadata[SHELF_MAX_METADATA];       /* JSON text; "": none */
};

/* "in_progress" ... */
const char *batch_status_name(enum batch_status s);
bool batch_has_ended(const struct shelf_batch *b);

struct shelf;

/* Makes the folder where it is missing.  ERR_BUSY where another process has it. */
int shelf_open(const char *folder, uint64_t max_bytes, struct shelf **out, struct err *err);
void shelf_close(struct shelf *s); /* NULL is allowed */

/* Bytes that may still be added. */
uint64_t shelf_room(struct shelf *s);
/* Bytes of unfinished answers, which count as the others do. */
void shelf_set_growing(struct shelf *s, uint64_t n_bytes);
/* "FOLDER/ID": where a batch's answers are written. */
void shelf_path(const struct shelf *s, const char *id, char *out, size_t n);

/* Keeps bytes as a file; *out is its record.  ERR_LIMIT where there is no room.  After it
 * returned 0 the file survives a crash. */
int shelf_add_file(struct shelf *s, const char *tenant, const char *name, const char *bytes,
                   size_t n, struct shelf_file *out, struct err *err);
int shelf_find_file(struct shelf *s, const char *tenant, const char *id,
                    struct shelf_file *out, struct err *err);
/* Opens it for reading: *fd is the caller's, and reads the file also when it is
 * deleted meanwhile. */
int shelf_read_file(struct shelf *s, const char *tenant, const char *id,
                    struct shelf_file *out, int *fd, struct err *err);
/* ERR_BUSY while a batch that has not ended reads it. */
int shelf_delete_file(struct shelf *s, const char *tenant, const char *id, struct err *err);

struct shelf_page {
    const char *tenant;
    const char *after;   /* an id; NULL: none */
    const char *purpose; /* of files; NULL: any */
    bool oldest_first;
    int limit;
};
/* out [limit] is filled; returns how many.  *has_more: others follow. */
int shelf_list_files(struct shelf *s, const struct shelf_page *page, struct shelf_file *out,
                     bool *has_more);
int shelf_list_batches(struct shelf *s, const struct shelf_page *page,
                       struct shelf_batch *out, bool *has_more);

/* Adds a batch of that input, which waits; *b is filled but for endpoint and metadata, which
 * are the caller's.  ERR_NOT_FOUND: there is no such input. */
int shelf_add_batch(struct shelf *s, const char *tenant, const char *input,
                    struct shelf_batch *b, struct err *err);
int shelf_find_batch(struct shelf *s, const char *tenant, const char *id,
                     struct shelf_batch *out, struct err *err);
/* The batch becomes *b (by its id), durably; but one that is being cancelled does not go back to in
 * progress. */
int shelf_put_batch(struct shelf *s, const struct shelf_batch *b, struct err *err);
/* Its counts become those of *b, until the process ends. */
void shelf_count_batch(struct shelf *s, const struct shelf_batch *b);
/* Changes the status of a batch that has not ended to cancelling; the runner does the
 * rest.  *out is the batch then. */
int shelf_cancel_batch(struct shelf *s, const char *tenant, const char *id,
                       struct shelf_batch *out, struct err *err);
/* Answers of b become files: those of which there are some. */
int shelf_keep_answers(struct shelf *s, struct shelf_batch *b, struct err *err);

/* The batch that is to run next: of the tenant that comes after `last` in turn, the oldest that
 * has not ended.  False where there is none. */
bool shelf_next_batch(struct shelf *s, const char *last, struct shelf_batch *out);

#endif
