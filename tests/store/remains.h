/* remains.h - searches a store's files, or its memory, for bytes of chunks. Uses cmocka's
 * assertions. */
#ifndef TESTS_STORE_REMAINS_H
#define TESTS_STORE_REMAINS_H

#include "storetest.h"

/* Memory for the one open store whose place is "dram", so that it can be searched. */
struct store_memory remains_memory(void);
/* Returns how many files of the place, or segments in its memory, contain these bytes. On a
 * simulated disk, adds the files as they are durable and the blocks that were ever freed. */
int files_with(const struct st_place *p, const void *what, size_t n);
/* Returns how many files contain tokens or state of a chunk or, if keys_too, its key. */
int remains(const struct st_place *p, const struct st_ctx *c, int chunk, bool keys_too);

#endif
