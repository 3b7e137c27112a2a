/* seal_file.h - files that are encrypted as a whole, and files that are encrypted in place.
 *
 * A *sealed file* grows at its end and is read from its beginning:
 *
 *     | "HCSEAL1\n" | mark of the seal, 8 bytes | frame | frame ...
 *     frame:  | n, 4 bytes | n bytes, sealed as a run (seal.h) |            (little-endian)
 *
 * The name of a frame is the file's name and the frame's number. So frames of other files, and
 * frames in another order, are refused. A file that was cut between two frames is a shorter file:
 * its owner knows how long it must be.
 *
 * A *file in place* keeps its length. It is encrypted in units of a fixed size as pages (seal.h);
 * its owner writes the 16 bytes of the head over bytes that are known.
 *
 * The head tells an encrypted file, and the key, without a try to decrypt. */
#ifndef SEAL_SEAL_FILE_H
#define SEAL_SEAL_FILE_H

#include "base/err.h"
#include "seal/seal.h"

enum { SEAL_HEAD_BYTES = 16, SEAL_FRAME_MOST = 1 << 20 };

/* Makes the seal of everything that no store's UUID belongs to: files beside a store, exports, and
 * chunks in a remote. It depends on the secret only, so all users of one secret can open them. */
struct seal *seal_shared(const uint8_t secret[SEAL_KEY_BYTES]);

/* Writes the head of a file. */
void seal_head(const struct seal *s, uint8_t out[SEAL_HEAD_BYTES]);
/* Compares the first n bytes of a file with the seal (NULL: without a key). Returns 0 if they
 * belong together, or ERR_MISMATCH with a message that begins with `what` and says which key is
 * missing. A file without bytes belongs to any seal. */
int seal_head_check(const struct seal *s, const void *bytes, size_t n, const char *what,
                    struct err *err);

/* Returns the bytes of n bytes as frames, without a head. */
size_t seal_frames_bytes(size_t n);
/* Seals n bytes as frames from number *frame on, which it raises. out has the room for
 * seal_frames_bytes(n). The salts come from the system. */
void seal_frames(const struct seal *s, const char *name, uint64_t *frame, const void *bytes,
                 size_t n, uint8_t *out);
/* Seals a whole file with its head. The caller frees the result. */
char *seal_whole(const struct seal *s, const char *name, const void *bytes, size_t n,
                 size_t *n_out);
/* Opens a whole file in place: *n becomes the bytes that were sealed. Returns 0, ERR_MISMATCH as
 * seal_head_check, or ERR_CORRUPT. */
int seal_whole_open(const struct seal *s, const char *name, char *file, size_t *n,
                    struct err *err);

/* State of a sealed file that is read or written frame by frame. {0} is the beginning. */
struct seal_place {
    uint64_t frame;   /* number of the next frame */
    uint64_t n_bytes; /* bytes of the file before it; 0: the head comes first */
    uint64_t n_plain; /* bytes in the frames before it */
};
/* Reads the frame at *p from a descriptor, and steps behind it. out has room for SEAL_FRAME_MOST +
 * SEAL_BYTES. *n is 0 at the end of the file. Returns 0, ERR_MISMATCH, ERR_CORRUPT at a frame that
 * is cut off or not right (*p stays before it), or -errno. */
int seal_frame_read(const struct seal *s, const char *name, int fd, struct seal_place *p,
                    void *out, size_t *n, struct err *err);
/* Adds up the bytes that the frames of a sealed file hold, without opening them. Returns 0 or
 * -errno. */
int seal_file_bytes(int fd, uint64_t *out);
/* Opens a sealed file as a file in memory, whose descriptor the caller closes. *p is then behind
 * the last frame. Returns 0, ERR_MISMATCH, ERR_CORRUPT, or -errno. */
int seal_file_to_memory(const struct seal *s, const char *name, int fd,
                        struct seal_place *p, int *out, struct err *err);

#endif
