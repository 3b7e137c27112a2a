/* found.h - shared by the tests of engine: made-up restores that have found their chunks. */
#ifndef TESTS_ENGINE_FOUND_H
#define TESTS_ENGINE_FOUND_H

#include "restore/restore_impl.h"
#include "store/store_impl.h"

/* Makes up a restore that has found n chunks with these kinds of records ("H", "K", "HK") in all
 * layers, and begins it. nodes [n] must outlive it. Its records cannot be read, so all slots must
 * have been taken. */
struct restore *found_restore(struct restore_pipeline *rr, struct chunk_node *nodes, int n,
                              const char *kinds);
/* Takes all free slots of staging memory, so that nothing is read, and gives them back. */
struct group_list found_take_slots(struct restore_pipeline *rr);
void found_give_slots(struct restore_pipeline *rr, struct group_list slots);

#endif
