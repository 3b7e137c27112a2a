/* shelf_impl.h - the insides of the shelf; private to shelf.c and shelf_disk.c. */
#ifndef BATCH_SHELF_IMPL_H
#define BATCH_SHELF_IMPL_H

#include <pthread.h>

#include "batch/shelf.h"

enum { SHELF_PATH_BYTES = 4200 };

/* Records in the order in which they came, each from malloc and with a shelf_head
 * at its beginning. */
struct shelf_list {
    struct shelf_head **at;
    int n, cap;
};

struct shelf {
    char *folder;
    int fd; /* of the folder, locked */
    uint64_t max_bytes;
    pthread_mutex_t lock; /* protects: */
    struct shelf_list files, batches;
    uint64_t growing_bytes;
};

void shelf_list_add(struct shelf_list *l, void *record); /* takes it */
void shelf_list_sort(struct shelf_list *l);

/* The file FOLDER/name has these bytes, durably. */
int shelf_write(struct shelf *s, const char *name, const char *bytes, size_t n,
                struct err *err);
int shelf_write_file_record(struct shelf *s, const struct shelf_file *f, struct err *err);
int shelf_write_batch_record(struct shelf *s, const struct shelf_batch *b, struct err *err);
void shelf_remove(struct shelf *s, const char *name); /* nothing where it is missing */
int shelf_sync(struct shelf *s, struct err *err);     /* removed names are gone */

#endif
