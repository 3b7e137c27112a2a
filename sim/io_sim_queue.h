/* io_sim_queue.h - asynchronous queues of the simulated disk (private to src/io). */
#ifndef SIM_IO_SIM_QUEUE_H
#define SIM_IO_SIM_QUEUE_H

#include "io/io_impl.h"

extern const struct io_queue_ops io_sim_queue_ops;

uint64_t io_sim_next_seed(struct io *io); /* Returns a different seed for each queue. */
bool io_sim_gets_stuck(const struct io_piece *p);
/* Returns the number of io_sim_unstick calls and crashes. */
uint64_t io_sim_unsticks(struct io *io);

#endif
