/* check.h - assertions against bugs, which stay on in release builds.
 *
 * CHECK is for conditions that only a programming error can break.  Bytes from a disk or a network
 * must never reach it.  CHECK_HOT is for inner loops: it is compiled into debug and sanitizer
 * builds only. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

_Noreturn void check_failed(const char *file, int line, const char *what);

/* Sets a function that is called once, on the thread that meets the fault, before the process ends:
 * because a CHECK failed, or because a small allocation found no memory (mem.h). Call it before
 * other threads exist. */
void check_on_end(void (*hook)(void *arg, const char *why), void *arg);
/* Prints why the process is about to end, and calls the hook. */
void check_tell_end(const char *why);

#define CHECK(cond) ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))

#ifdef HC_DEBUG
#define CHECK_HOT(cond) CHECK(cond)
#else
#define CHECK_HOT(cond) ((void)sizeof(cond))
#endif

#endif
