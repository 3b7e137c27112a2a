/* save_kinds.h - which records of each layer are saved.
 *
 * Saving and restoring are two decisions: plans can later read only the kinds that are saved
 * now, and the context will have grown by then.
 *
 * Pure: no clock, no allocation. */
#ifndef RESTORE_SAVE_KINDS_H
#define RESTORE_SAVE_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/layer_set.h"
#include "pack/pack.h"
#include "restore/plan.h"
#include "restore/platform.h"

/* Input of the decision. */
struct save_kinds_from {
    int n_layers;
    /* Layers that have no K and V: wherever records are saved, theirs are hidden states. */
    struct layer_set recurrent;
    double h_bytes, kv_bytes; /* a token's hidden state, and its K and V, of one layer */
    /* NULL or without a tier: the store's speed is unknown. */
    const struct platform *platform;
    int64_t max_tokens; /* length that a context may grow to */
    /* save_kinds_pack: */
    bool has_copies;   /* the store keeps copies in DRAM */
    double pack_share; /* what packing leaves of the bytes */
    uint8_t saved;     /* PLAN_HAS_ bits of the kinds that are saved; 0: both may be */
};

/* Fills kinds [n_layers] with PLAN_HAS_ bits. `text`: "hidden", "kv", "both", "none", a letter
 * per layer (H, K, B for both, - for neither), or "auto": the kinds that the planner would use
 * as the context grows to max_tokens. While the store's speed is unknown, auto keeps every kind
 * that could be in a best plan: KV alone if hidden states are no smaller, else both. Returns
 * ERR_USAGE for any other text. */
int save_kinds_choose(const char *text, const struct save_kinds_from *from, uint8_t *kinds,
                      struct err *err);

/* Adds the kinds that plans use beside decodes, where restores get only a share of the compute. */
int save_kinds_add_beside(const char *text, const struct save_kinds_from *from,
                          uint8_t *kinds, struct err *err);

/* The share of its bytes that packed state of a type takes (pack.h, docs/perf/2026-11-30d.md). */
#define SAVE_PACK_SHARE(type)                                                              \
    ((type) == PACK_BF16 ? 0.68 : (type) == PACK_F16 ? 0.86 : 0.84)

/* Returns whether packed records are restored about as fast as plain ones. Compares the time of the
 * fastest single method, recomputation included, for contexts of 512 tokens, of each doubling, and
 * of max_tokens. With packed records it may be at most SAVE_PACK_SLOWER times as long. It is
 * shorter where the disk is the bottleneck. If the store keeps copies in DRAM (has_copies),
 * restores from copies read nothing but must unpack. Then the time won on the disk, summed over the
 * lengths, must also be at least the time of unpacking copies. Returns false while the speed of the
 * store, or of unpacking, is unknown. */
#define SAVE_PACK_SLOWER 1.02
bool save_kinds_pack(const struct save_kinds_from *from);

/* Chunks of a context that were found in the store. */
struct save_kinds_found {
    int n_chunks;
    bool has_partial;      /* the last chunk holds fewer tokens than a full one */
    const uint8_t *stored; /* [n_layers] records of the last chunk */
};

/* Returns how many of the found chunks a restore may use: all, or all but the last one. A
 * partial chunk that lacks wanted records is computed again, so that the full chunk that
 * replaces it has them all. wanted: [n_layers], NULL: nothing is saved. */
int save_kinds_usable(const struct save_kinds_found *f, const uint8_t *wanted,
                      int n_layers);

#endif
