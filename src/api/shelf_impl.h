/* shelf_impl.h - shared by shelf.c and shelf_disk.c; private to them. */
#ifndef API_SHELF_IMPL_H
#define API_SHELF_IMPL_H

#include <pthread.h>

#include "api/shelf.h"

enum { SHELF_PATH_BYTES = 4200 };

/* Records in order of creation. Each is from malloc and begins with a shelf_head. */
struct shelf_list {
    struct shelf_head **at;
    int n, cap;
};

struct shelf {
    char *folder;
    int fd; /* descriptor of the folder, which is locked */
    struct io *io;
    const struct seal *seal; /* NULL: files are plain */
    uint64_t max_bytes, tenant_bytes;
    int tenant_files, tenant_batches;
    pthread_mutex_t lock; /* protects the fields below */
    struct shelf_list files, batches;
};

/* Adds a copy of a file's or a batch's struct. */
void shelf_add_copy(struct shelf_list *l, const struct shelf_head *record, size_t n_bytes);
/* Returns how many bytes of a batch its copies take: up to the end of its metadata. */
size_t shelf_batch_bytes(const struct shelf_batch *b);
void shelf_list_sort(struct shelf_list *l);

/* Writes the file FOLDER/name durably with these bytes. */
int shelf_write(struct shelf *s, const char *name, const char *bytes, size_t n,
                struct err *err);
int shelf_write_file_record(struct shelf *s, const struct shelf_file *f, struct err *err);
int shelf_write_batch_record(struct shelf *s, const struct shelf_batch *b, struct err *err);
/* Overwrites and removes a file. A missing file is no error. */
int shelf_erase(struct shelf *s, const char *name, struct err *err);
/* Takes the record of the id away, durably: renames it to ID.json.new, which the next start erases
 * with the bytes. Then erases it. Only logs a failure of the erasing. */
int shelf_drop_record(struct shelf *s, const char *id, struct err *err);
int shelf_sync(struct shelf *s, struct err *err); /* makes removals of files durable */

#endif
