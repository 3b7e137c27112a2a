/* input.h - reads a file or a pipe line by line, with a limit on the length of a line. */
#ifndef API_INPUT_H
#define API_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/textbuf.h"

enum { INPUT_MAX_LINE = 16 << 20 }; /* longest line, in bytes */

struct input {
    int fd;
    bool is_owned, at_end;
    uint64_t n_lines, n_bytes;         /* lines read so far, and their bytes */
    uint64_t total_lines, total_bytes; /* lines and bytes of a regular file; 0: not known */
    struct textbuf line; /* the line that was read last, or a part of the next one */
    bool has_line, is_too_long;
    char *buf;
    size_t at, end; /* buf holds unread bytes [at, end) */
};

enum input_got {
    INPUT_LINE,
    INPUT_TOO_LONG, /* a line of more than INPUT_MAX_LINE bytes was dropped */
    INPUT_LATER,    /* a pipe has no whole line yet */
    INPUT_END,
    INPUT_FAULT,
};

/* Opens the file; "-" is standard input.  Counts the lines of a regular file. */
int input_open(struct input *in, const char *path, struct err *err);
/* Gets the next line that is not empty: in->line, without its line break, valid until the next
 * call. Waits at most wait_ms for a pipe.  With INPUT_FAULT, *err is set. */
enum input_got input_next(struct input *in, int wait_ms, struct err *err);
void input_close(struct input *in);

#endif
