/* io_sim_queue.h - asynchronous queues of the simulated disk (private to src/io). */
#ifndef IO_IO_SIM_QUEUE_H
#define IO_IO_SIM_QUEUE_H

#include "io/io_impl.h"

extern const struct io_queue_ops io_sim_queue_ops;

uint64_t io_sim_next_seed(struct io *io); /* io_sim.c: another for each queue */

#endif
