/* linewise.c - makes stdout line-buffered, so that results of a test program are written as soon as
 * they are known.
 *
 * Into a file or a pipe they would otherwise be written when a buffer is full.  If a program hangs
 * or a signal ends it, its last test would then be unknown.  Linked into every test. */
#include <stdio.h>

__attribute__((constructor)) static void write_lines_at_once(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
}
