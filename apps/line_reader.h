/* line_reader.h - reads the messages that a user types.
 *
 * On a terminal, lines can be edited and earlier lines recalled (libedit).  From a file or a pipe,
 * lines are read unchanged.  A message has several lines if a line ends with a backslash, between
 * """ and """, and if a terminal pastes several lines; Enter then sends them. */
#ifndef APPS_LINE_READER_H
#define APPS_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>

struct line_reader;

/* Opens a reader of standard input. history: a file of earlier lines, used on a terminal only;
 * NULL: none. The file is read now and written after each message, with mode 0600. If it cannot be
 * read or written, one message says so, and reading goes on. */
struct line_reader *line_reader_open(const char *history);
void line_reader_close(struct line_reader *r); /* NULL is allowed */

/* Returns the next message without its last newline; it has *n bytes and is valid until the next
 * call. Returns NULL at the end of input. Ctrl-C drops the typed text and prompts again. */
const char *line_reader_next(struct line_reader *r, size_t *n);

#endif
