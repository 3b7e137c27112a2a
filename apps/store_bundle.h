/* store_bundle.h - writes chunks of a store to one file and reads them back, for hcache store
 * export and import.
 *
 *     4096 bytes   "HCBUNDLE", version u32, checksum64 at 16 of the block with that field zero
 *     (4096 bytes  "HCBTURNS" likewise, length of a text u64 at 24; then the text, its checksum64, and
 *                  zeros to whole blocks.  Version 2 has this part: a kept conversation,
 *                  store_turns.h)
 *     parcels      one after another (store/parcel.h), parents before their children
 *     4096 bytes   "HCBUNEND", number of parcels u64 at 24, checksum64 at 16 likewise
 *
 * The export of an encrypted store is a sealed file (seal_file.h) of these bytes, named "export".
 *
 * Numbers are little-endian.  Every byte of a parcel is verified when the file is written and when
 * it is read. */
#ifndef APPS_STORE_BUNDLE_H
#define APPS_STORE_BUNDLE_H

#include "seal/seal.h"
#include "store/store.h"

struct bundle_counts {
    /* chunks and bytes that were written to the file, or to the store */
    uint64_t n_chunks, n_bytes;
    uint64_t n_known; /* import: chunks that the store already had */
    uint64_t n_gone;  /* export: chunks that left the store meanwhile, or are damaged */
};

/* Writes keys[0, n) to a new file, which is complete and durable when it appears under its name.
 * turns: the text of a conversation; NULL: none. seal: encrypts the file (seal_file.h); NULL: it is
 * plain. */
int bundle_write(struct store *s, const struct seal *seal, const struct sha256 *keys, int n,
                 const char *turns, const char *path, struct bundle_counts *out,
                 struct err *err);
/* Reads a file into the store. After an error the chunks that were read before it are stored and
 * can be found. Repeating an interrupted import continues it. *turns is the text of the
 * conversation, which the caller frees; NULL: the file has none. seal opens an encrypted file; a
 * plain one needs none. Returns ERR_MISMATCH for a file of another key. */
int bundle_read(struct store *s, const struct seal *seal, const char *path, char **turns,
                struct bundle_counts *out, struct err *err);

#endif
