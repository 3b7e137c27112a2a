/* store_bundle.h - chunks of a store as one file, and back: what hcache store export and import do.
 *
 *     4096 bytes   "HCBUNDLE", version u32, checksum64 at 16 of the block with that field zero
 *     (4096 bytes  "HCBTURNS" likewise, length of a text u64 at 24; then the text with its checksum64 behind
 *                  it, and zeros to whole blocks.  Version 2 has this part: a kept conversation,
 *                  store_turns.h)
 *     parcels      one behind the other (store/parcel.h), parents before what continues them
 *     4096 bytes   "HCBUNEND", number of parcels u64 at 24, checksum64 at 16 likewise
 *
 * Numbers are little-endian.  Every byte of a parcel is verified when the file is
 * written and when it is read. */
#ifndef APPS_STORE_BUNDLE_H
#define APPS_STORE_BUNDLE_H

#include "store/store.h"

struct bundle_counts {
    uint64_t n_chunks, n_bytes; /* written to the file, or into the store */
    uint64_t n_known;           /* import: the store had them already */
    uint64_t n_gone; /* export: they have left the store meanwhile, or are damaged */
};

/* Writes keys[0, n) to a new file, which is whole and durable when it has its
 * name.  turns: NULL for none. */
int bundle_write(struct store *s, const struct sha256 *keys, int n, const char *turns,
                 const char *path, struct bundle_counts *out, struct err *err);
/* Reads a file into the store.  On an error what came before is stored, and may be found: an
 * import that was cut off goes on when it is called again.  *turns: the caller's to free;
 * NULL where the file has none. */
int bundle_read(struct store *s, const char *path, char **turns, struct bundle_counts *out,
                struct err *err);

#endif
