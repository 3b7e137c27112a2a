/* peer_threads.h - ranks and stages for unit tests: the processes of a group are threads.
 *
 * Their messages are those of mpi/peer.c and mpi/serve.c; only mpi/job.c, which needs MPI, is
 * replaced by queues.  So a test reads a peer's memory by its address, after stream_sync. */
#ifndef TESTS_TENSOR_PEER_THREADS_H
#define TESTS_TENSOR_PEER_THREADS_H

/* From now on a group of any size opens its peers as threads, which end when it is closed. */
void peer_threads_use(void);

#endif
