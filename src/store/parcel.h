/* parcel.h - one whole chunk as bytes outside of a store, as a shared tier holds it.
 *
 * A parcel is an extent (chunk.h) of no store. Its UUID, id, device, segment and offset are 0,
 * and it has all records that the chunk had on all devices.
 *
 * The header names key, parent, fingerprint, owner, position and tokens, and has a checksum of
 * itself and of each record. So a parcel identifies itself: bytes of another chunk, another
 * model or another salt are recognised, and so is every flipped bit. Checksums are no
 * signatures: writers of parcels must be trusted like writers of the store's files. */
#ifndef STORE_PARCEL_H
#define STORE_PARCEL_H

#include "store/chunk.h"

/* Memory for one parcel, which grows.  {0} is empty. */
struct parcel {
    uint8_t *bytes; /* page-aligned memory */
    size_t n_bytes, max_bytes;
};
void parcel_deinit(struct parcel *p);
/* Makes room for n bytes; the old content is lost. Returns 0 or -ENOMEM. */
int parcel_reserve(struct parcel *p, size_t n, struct err *err);

/* Checks a parcel of n bytes: the header, that it belongs to no store, its size, and the checksum
 * of each record. Returns 0 with *out, or ERR_FORMAT, ERR_CORRUPT or ERR_UNSUPPORTED. */
int parcel_check(const uint8_t *bytes, size_t n, struct chunk_header *out, struct err *err);

/* Reads a committed chunk with all its records from a store. The read does not count as a use:
 * neither its place among victims nor any count of hits changes. `r` is a reader of the same store,
 * with no read in flight. Returns ERR_NOT_FOUND if the chunk is not stored, and ERR_CORRUPT if it
 * is damaged; then it is condemned. */
int parcel_read(struct store *s, struct store_reader *r, const struct sha256 *key,
                struct parcel *out, struct err *err);

/* Fills in *out with the chunk of a parcel. records [CHUNK_MAX_RECORDS] become its records, whose
 * bytes lie in the parcel. */
void parcel_chunk(const uint8_t *bytes, const struct chunk_header *h,
                  struct store_record *records, struct store_chunk *out);

/* Appends the chunk of a parcel that parcel_check has accepted, as store_append does. The records
 * keep their checksums, so bytes that change after parcel_check are found when the record is
 * read. */
int parcel_append(struct store *s, const uint8_t *bytes, const struct chunk_header *h,
                  const struct store_use *use, struct err *err);

#endif
