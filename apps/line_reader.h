/* line_reader.h - reads messages that a user types.
 *
 * On a terminal a line can be edited and the lines before it are recalled (libedit).
 * From a file or a pipe lines are read as they are.  A message has several lines where a
 * line ends with a backslash, between """ and """, and where a terminal pastes several
 * lines: then Enter sends them. */
#ifndef APPS_LINE_READER_H
#define APPS_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>

struct line_reader;

/* history: a file of the lines that were typed before, read now and written after each message,
 * on a terminal only; its mode is 0600.  NULL: none.  A history that cannot be read or written
 * is said once and does no other harm. */
struct line_reader *line_reader_open(const char *history);
void line_reader_close(struct line_reader *r); /* NULL is allowed */

/* Returns the next message, valid until the next call, without its last newline and of *n
 * bytes.  NULL: the end of input.  Ctrl-C drops what was typed and asks again. */
const char *line_reader_next(struct line_reader *r, size_t *n);

#endif
