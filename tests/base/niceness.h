/* niceness.h - the nice values of this program's threads. */
#ifndef TESTS_BASE_NICENESS_H
#define TESTS_BASE_NICENESS_H

/* Returns how many threads of this program have this nice value. */
int threads_at_nice(int nice);

#endif
