/* ledger.h - the index, and all that the next commit writes to it.
 *
 * Invariants:
 * 1. Extents in `pending` are written, but neither durable nor visible. Each is on its node, oldest
 *    first.
 * 2. A change of a use or pin is lost if no commit follows; a pin's caller asks for one.
 * 3. Ids from next_id up to id_limit may be given to extents. id_limit is durable in the index. So
 *    no two extents that were ever written, committed or not, have the same id, and a rebuild can
 *    tell the newer one by its id.
 *
 * index_lock protects the index's connection, and is held across its fsync. The store's lock
 * protects the rest; it is never held while index_lock is taken. */
#ifndef STORE_LEDGER_H
#define STORE_LEDGER_H

#include <pthread.h>

#include "store/catalog.h"
#include "store/index.h"

/* Most uses that wait to be written. Further uses are not recorded, which does no harm. */
#define LEDGER_MAX_TOUCHED 65536
/* id_limit is raised by this number at a time. */
#define LEDGER_ID_RESERVE 65536

/* The row of an extent, and the use that the next commit writes there. */
struct ledger_touch {
    uint64_t id;
    struct index_use use;
};

/* The partial chunk `key` is removed when `by` is committed. */
struct ledger_supersede {
    /* an extent of the chunk that replaces it; its state is PENDING */
    const struct extent *by;
    struct sha256 key;
};

struct ledger {
    pthread_mutex_t index_lock;
    struct index *index; /* NULL: the store is in memory */
    char *path;
    bool takes_notes; /* the index can be written: uses and pins are noted */
    bool was_rebuilt; /* the index was damaged at open, and was rebuilt */
    /* Nothing was committed since open. The index that a killed process left may be visible and
     * yet not durable, so the first commit is never skipped. */
    bool is_fresh;
    uint64_t index_bytes; /* bytes of the index's pages in use, as of the last commit */

    struct extent *pending, **pending_end; /* a list by extent.pending_next */
    uint64_t pending_bytes, n_pending;     /* bytes and number of these extents */
    struct ledger_supersede *supersedes;
    uint32_t n_supersedes;
    struct ledger_touch *touched;
    uint32_t n_touched;
    struct index_pin *pin_changes; /* changes of lasting pins */
    uint32_t n_pin_changes;
    uint64_t next_id, id_limit;
};

void ledger_init(struct ledger *l);
void ledger_deinit(struct ledger *l);

/* Adds a written extent, which is on its node. */
void ledger_add(struct ledger *l, struct extent *x);
/* Takes all pending extents; the caller owns the list. */
struct extent *ledger_take_pending(struct ledger *l);
/* Puts taken extents back, in front of later ones. */
void ledger_return_pending(struct ledger *l, struct extent *list);
/* Notes that the partial chunk `key` is removed when the pending extent x is committed. */
void ledger_supersede(struct ledger *l, const struct extent *x, const struct sha256 *key);
/* Finds a chunk that x supersedes, and forgets it. Returns false if there is none. */
bool ledger_superseded(struct ledger *l, const struct extent *x, struct sha256 *key);

/* Has the next commit write when the node was last used, and whether it is dropped. */
void ledger_note_use(struct ledger *l, const struct chunk_node *n);
/* Has the next commit write a change of a lasting pin. */
void ledger_note_pin(struct ledger *l, const struct index_pin *pin);

#endif
