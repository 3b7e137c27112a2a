/* weights_image.h - an image of loaded weights: a file of the user's cache with the bytes that a
 * CPU computes with.  A later start maps it, so nothing is read twice, converted or zeroed.
 * Private to src/model.
 *
 *   $XDG_CACHE_HOME/hcache/images/KEY      (~/.cache/hcache/images)
 *
 *     0          header: magic, key, bytes, checksums of the table and of the header
 *     4096       table: a checksum for each MiB of the weights
 *     ...        the weights, piece after piece, from a multiple of 4096 on
 *
 * The key names the checkpoint's files with their time of change, the layout and the types of all
 * pieces, so an image never has to be told that it is out of date.  An image is a cache: one that
 * is damaged is deleted, and made anew by the next start.  A file gets its name when it is
 * complete; before, it has none, and a process that is killed leaves nothing.
 *
 * All images take at most IMAGES_MAX_BYTES, and a quarter of the free room.  The images that were
 * used longest ago are deleted first.  A file that another user owns or may write is not read.
 *
 * The user's other programs can write the file while it is mapped, and so change the weights.  So
 * every use asks weights_image_is_intact.  Where the file was cut, or the disk fails, reading gives
 * zeros instead of a signal: mapping installs a handler of SIGBUS for these addresses, which passes
 * all others on to the handler before it. */
#ifndef MODEL_WEIGHTS_IMAGE_H
#define MODEL_WEIGHTS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/pool.h"

#define IMAGES_MAX_BYTES ((uint64_t)32 << 30)
/* Smaller models are loaded in some milliseconds. */
#define IMAGE_MIN_BYTES ((size_t)16 << 20)
/* Pieces begin at multiples of this: a cache line. */
enum { IMAGE_LINE = 64 };

struct weights_image;

/* A piece of the weights in memory. */
struct image_piece {
    const void *at;
    size_t bytes;
};

/* Maps the image that has this key and n_bytes of weights. The pool's threads check all of it.
 * Returns NULL if there is none that may be used. */
struct weights_image *weights_image_map(const struct sha256 *key, size_t n_bytes,
                                        struct pool *pool);

/* Writes an image on a thread of the lowest priority.  The pieces' memory must not change until
 * weights_image_close, which waits a second and then ends the writing; the list itself is copied.
 * Returns NULL if there is no room or no cache. */
struct weights_image *weights_image_make(const struct sha256 *key, size_t n_bytes,
                                         const struct image_piece *pieces, size_t n);

/* Returns the first byte of a mapped image, at a multiple of 4096; NULL: it is being written. */
uint8_t *weights_image_memory(const struct weights_image *im);

/* Returns whether a mapped image still has the bytes that were checked. Any thread; one system
 * call. */
bool weights_image_is_intact(const struct weights_image *im);

/* Unmaps, or stops writing. NULL is allowed. */
void weights_image_close(struct weights_image *im);

#endif
