/* said.h - catches what the program says on stderr.
 *
 *     said_begin(LOG_INFO);
 *     store_open(...);
 *     assert_string_equal(said_end(), "hcache: the index is rebuilt\n");
 *
 * A process has one stderr, so one text is caught at a time.  A failed assertion between begin and
 * end is caught, too, and not seen: assert afterwards.  The text is valid until the next call. */
#ifndef TESTS_BASE_SAID_H
#define TESTS_BASE_SAID_H

#include "base/log.h"

/* From now on messages of this level are caught. */
void said_begin(enum log_level level);

/* Returns what has been said since said_begin. Messages are still caught. */
const char *said_so_far(void);

/* Returns what has been said since said_begin. stderr and the level are as before. */
const char *said_end(void);

/* Returns how often the part is in the text. */
int said_count(const char *text, const char *part);

/* Asserts that a text is the formatted one. */
#define assert_text(text, ...)                                                             \
    do {                                                                                   \
        char *text_ = xasprintf(__VA_ARGS__);                                              \
        assert_string_equal(text, text_);                                                  \
        free(text_);                                                                       \
    } while (0)

#endif
