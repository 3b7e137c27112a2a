/* linewise.c - makes stdout line-buffered, so that a test program writes each result as soon as the
 * result is known.
 *
 * If stdout is a file or a pipe, the C library writes only when a buffer is full. A test program
 * that hangs or is killed by a signal would then not show which test ran last. Linked into every
 * test. */
#include <stdio.h>

__attribute__((constructor)) static void write_lines_at_once(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
}
