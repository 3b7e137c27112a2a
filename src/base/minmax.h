/* minmax.h - the lesser and the greater of two numbers, and their order. Each argument may be
 * evaluated twice, so it has no side effects. */
#ifndef BASE_MINMAX_H
#define BASE_MINMAX_H

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
/* -1, 0 or 1, for qsort */
#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

#endif
