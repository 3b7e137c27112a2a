/* shelf.h - uploaded files and the records of batches, in one folder.
 *
 *     file-ID           the bytes of a file, or the answers of a batch that is not finished
 *     file-ID.json      its record: without it the bytes are not a file
 *     batch_ID.json     the record of a batch
 *     *.new             being written when the process ended; shelf_open removes it
 *
 * Records are read when the folder is opened and then kept in memory.  Any thread may call any
 * function; functions that change something wait for the disk.
 *
 * Invariants:
 *  1. A record is written to a new file, synced, and renamed, so a crash leaves the old or the new
 *     one.
 *  2. A look-up finds only records of the tenant that asks.  For others, ERR_NOT_FOUND is returned,
 *     as for records that do not exist.
 *  3. All bytes together stay within max_bytes; a record counts as SHELF_RECORD_BYTES.
 *  4. No tenant takes another's share of a bound (shelf_divide).  Records of tenants that exist no
 *     longer count against the bounds of the whole shelf alone. */
#ifndef API_SHELF_H
#define API_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    SHELF_ID_BYTES = 48,
    SHELF_ID_DIGITS = 24, /* hexadecimal digits behind "file-" or "batch_" */
    SHELF_TENANT_BYTES = 72,
    SHELF_NAME_BYTES = 256,
    SHELF_RECORD_BYTES = 4096,
    SHELF_MAX_FILES = 10000,
    /* A tenant that exceeds its share loses its oldest finished batch. At this number of batches,
     * the tenant with the most batches loses one. */
    SHELF_MAX_BATCHES = 1000,
    SHELF_MAX_METADATA = 16 << 10,
};

/* The fields that records of files and records of batches share. */
struct shelf_head {
    char id[SHELF_ID_BYTES];
    char tenant[SHELF_TENANT_BYTES];
    int64_t created_s;
};

struct shelf_file {
    struct shelf_head head;
    char name[SHELF_NAME_BYTES];
    char purpose[16]; /* "batch" for an upload, "batch_output" for answers */
    uint64_t n_bytes;
};

enum batch_status {
    BATCH_VALIDATING, /* the batch waits for its turn */
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_COMPLETED,
    BATCH_FAILED,
    BATCH_CANCELLING,
    BATCH_CANCELLED,
    BATCH_STATUSES
};

/* A batch. Its output and errors get their ids at its start, and become files when it ends. */
struct shelf_batch {
    struct shelf_head head;
    enum batch_status status;
    /* time at which it got each status, in seconds since 1970; 0: never */
    int64_t at_s[BATCH_STATUSES];
    char endpoint[64];
    char input[SHELF_ID_BYTES], output[SHELF_ID_BYTES], errors[SHELF_ID_BYTES];
    bool has_output, has_errors; /* the output and the errors have become files */
    int64_t n_lines, n_done, n_failed;
    char error_code[32], error_message[300]; /* why the batch failed; "" if it did not */
    /* Not in the record: see shelf_set_growing and shelf_hold_batch. */
    uint64_t growing_bytes, wants_bytes;
    int64_t held_ns; /* time at which the batch began to wait for room (clock_now_ns) */
    int held_code;   /* the code of the bound that it met; 0: it does not wait for room */
    /* JSON text of an object, or "". It never changes. The shelf's memory ends behind the text. */
    char metadata[SHELF_MAX_METADATA];
};

/* Returns the status's name in the API, such as "in_progress". */
const char *batch_status_name(enum batch_status s);
bool batch_has_ended(const struct shelf_batch *b);

struct seal;
struct shelf;

/* Opens a folder, which is created if it is missing. Returns ERR_BUSY if another process has it
 * open. `seal` encrypts all files and must outlive the shelf; NULL: they are plain. Returns
 * ERR_MISMATCH if a record was written with another seal. */
int shelf_open(const char *folder, uint64_t max_bytes, const struct seal *seal,
               struct shelf **out, struct err *err);
void shelf_close(struct shelf *s); /* NULL is allowed */

/* Divides the bounds among n tenants, so that each may have an n-th part of the files, the batches
 * and the bytes. tenant_bytes: bytes of each tenant; 0: an n-th part. Call it after shelf_open;
 * without this call a tenant may have all. */
void shelf_divide(struct shelf *s, int n_tenants, uint64_t tenant_bytes);
/* Returns the bytes that the tenant may still add. */
uint64_t shelf_room(struct shelf *s, const char *tenant);
/* Sets the bytes of the answers that a batch has so far. They count against max_bytes until
 * shelf_keep_answers makes files of them, also while the batch waits for its turn. */
void shelf_set_growing(struct shelf *s, const struct shelf_batch *b, uint64_t n_bytes);
/* Writes "FOLDER/ID", the path of a batch's answers. */
void shelf_path(const struct shelf *s, const char *id, char *out, size_t n);

/* Stores bytes as a file; *out is its record. Returns ERR_LIMIT if there is no room. After it has
 * returned 0, the file survives a crash. */
int shelf_add_file(struct shelf *s, const char *tenant, const char *name, const char *bytes,
                   size_t n, struct shelf_file *out, struct err *err);
/* Finds a file: *out is its record. If fd is not NULL, also opens it for reading. *fd is the
 * caller's; while it is open, the file cannot be deleted, because deleting overwrites its bytes. An
 * encrypted file is opened as a copy in memory. */
int shelf_read_file(struct shelf *s, const char *tenant, const char *id,
                    struct shelf_file *out, int *fd, struct err *err);
/* Writes a path under which a batch's input can be read. For an encrypted file it is the path of a
 * copy in memory, which lasts as long as the caller keeps *fd open; else *fd is -1. */
int shelf_open_input(struct shelf *s, const char *id, char *path, size_t n, int *fd,
                     struct err *err);
const struct seal *shelf_seal(const struct shelf *s);
/* Overwrites and deletes a file. Returns ERR_BUSY while an unfinished batch or a caller of
 * shelf_read_file reads it. After an error the file is as before. After 0 it is gone. If
 * *is_pending, its bytes could not be overwritten (*err says why), and the next start does it. */
int shelf_delete_file(struct shelf *s, const char *tenant, const char *id, bool *is_pending,
                      struct err *err);

struct shelf_page {
    const char *tenant;
    const char *after;   /* the page begins after this id; NULL: with the first record */
    const char *purpose; /* lists only files with this purpose; NULL: all */
    bool oldest_first;
    int limit;
};
/* Both fill out[0..limit) and return the number of records. *has_more: more records follow. */
int shelf_list_files(struct shelf *s, const struct shelf_page *page, struct shelf_file *out,
                     bool *has_more);
int shelf_list_batches(struct shelf *s, const struct shelf_page *page,
                       struct shelf_batch *out, bool *has_more);

/* Adds a batch that waits to run on the file `input`. The caller has set endpoint and metadata of
 * *b; the other fields are filled in. Returns ERR_NOT_FOUND if there is no such file. */
int shelf_add_batch(struct shelf *s, const char *tenant, const char *input,
                    struct shelf_batch *b, struct err *err);
int shelf_find_batch(struct shelf *s, const char *tenant, const char *id,
                     struct shelf_batch *out, struct err *err);
/* Stores *b durably as the batch of its id. A batch that is being cancelled does not become
 * in_progress again. */
int shelf_put_batch(struct shelf *s, const struct shelf_batch *b, struct err *err);
/* Copies the counts of *b to the batch, in memory only. */
void shelf_count_batch(struct shelf *s, const struct shelf_batch *b);
/* Sets the status of a batch that has not ended to cancelling; the runner does the rest.  *out is
 * the changed batch. */
int shelf_cancel_batch(struct shelf *s, const char *tenant, const char *id,
                       struct shelf_batch *out, struct err *err);
/* Makes files of b's output and errors, if there are any. */
int shelf_keep_answers(struct shelf *s, struct shelf_batch *b, struct err *err);

/* Makes a batch wait until its tenant and the disk have room for n_bytes more, or until
 * shelf_close. `code` is ERR_LIMIT if the batch met the shelf's own bound. Another code is a fault
 * of the disk, which is tried again after SHELF_RETRY_S or later. With code 0 the batch waits no
 * longer. */
void shelf_hold_batch(struct shelf *s, const struct shelf_batch *b, uint64_t n_bytes,
                      int code);
enum { SHELF_RETRY_S = 5 };
/* Finds the batch to run next: the oldest unfinished one of the tenant whose turn follows that of
 * `last`. Passes over batches that wait for room; *n_held, unless n_held is NULL, is their number.
 * Returns false if there is no other. */
bool shelf_next_batch(struct shelf *s, const char *last, struct shelf_batch *out,
                      int *n_held);

#endif
