/* io_posix.h - files and folders by system call, shared by io_pread.c and io_uring.c. */
#ifndef IO_IO_POSIX_H
#define IO_IO_POSIX_H

#include "io/io_impl.h"

extern const struct io_ops io_posix_ops;

/* Returns a struct io on the heap over io_posix_ops. Its close frees it. */
struct io *io_posix_create(const char *name, const struct io_queue_ops *queue_ops);

int io_posix_fd(const struct io_file *f);
/* Returns the descriptor for reads through the page cache. file_is_cached has returned true. */
int io_posix_cached_fd(const struct io_file *f);
/* Makes one attempt to read a piece through the page cache. */
ssize_t io_posix_read_cached(const struct io_piece *p);

/* As io_medium_check (io_medium.c). */
bool io_medium_posix(const char *path, char *why, size_t n);
/* Returns whether blocks of the file belong to another file, too (a reflink). */
bool io_posix_is_shared(int fd);

/* Queues that transfer by plain system calls (io_pread.c). */
extern const struct io_queue_ops io_pread_queue_ops;

#endif
