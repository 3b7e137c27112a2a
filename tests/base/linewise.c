/* linewise.c - results of a test program are in its output as soon as they are known.
 *
 * Into a file or a pipe they would be written when a buffer is full: of a program that hangs,
 * or that a signal ends, nobody could tell which of its tests it was.  Linked into every test. */
#include <stdio.h>

__attribute__((constructor)) static void write_lines_at_once(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
}
