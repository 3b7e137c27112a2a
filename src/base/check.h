/* check.h - bugs are asserted and stay asserted in release builds.
 *
 * CHECK is for what only a programming error can break; nothing that was read from a disk or a
 * network may reach it.  CHECK_HOT is compiled into debug and sanitizer builds only: it is for
 * inner loops. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

_Noreturn void check_failed(const char *file, int line, const char *what);

#define CHECK(cond) ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))

#ifdef HC_DEBUG
#define CHECK_HOT(cond) CHECK(cond)
#else
#define CHECK_HOT(cond) ((void)sizeof(cond))
#endif

#endif
