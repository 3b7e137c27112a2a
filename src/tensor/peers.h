/* peers.h - the ranks of a group as processes, one for each device, started by mpirun.
 *
 *   process 0      has the engine, the store and the server, and opens a group (group.h).  Rank 0
 *                  of its first stage is a device of its own.  Every other rank is a *peer*: a
 *                  struct device whose calls become messages to a process.
 *   process i > 0  carries out messages, one after another, on a device of its own (peers_serve).
 *
 * Messages to one process keep their order, and a stream's calls return before the peer has carried
 * them out.  So a peer computes beside rank 0, and waits only in exchanges.  Copies from a peer to
 * the host, and stream_sync, wait for the peer's answer.  Host memory that a call reads travels in
 * its message, and may be reused at once.
 *
 * A peer's memory has the same addresses in both processes: process 0 gives them out, from a range
 * of the address space that nothing else uses.  They are only numbers there.
 *
 * All of this is in a shared library, hcache-mpi.so (mpi/), which is loaded only where mpirun has
 * started several processes.  So a plain build needs no MPI. */
#ifndef TENSOR_PEERS_H
#define TENSOR_PEERS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A variable that mpirun sets for the processes that it starts: their number. */
#define PEERS_VARIABLE "OMPI_COMM_WORLD_SIZE"
/* mpirun passes this signal on to its processes. Process 0 takes it for SIGTERM, which mpirun takes
 * for itself. */
#define PEERS_STOP SIGUSR1

/* Returns whether mpirun has started the program as several processes. */
bool peers_are_started(void);
/* Returns 0, or ERR_UNSUPPORTED with the reason why this program cannot join a job. */
int peers_check(struct err *err);
/* Joins the job; call it once, before any other thread exists. Sets *index to this process's
 * number. Process 0 leaves the job when it exits. */
int peers_join(int *index, struct err *err);
/* Carries out messages until process 0 leaves; for every process but 0. Returns the exit code. */
int peers_serve(void);
/* Returns the number of processes; 1 before peers_join. Any thread. */
int peers_count(void);
/* Returns how many of them are on this machine, and share its processors; at least 1. */
int peers_here(void);

struct io;
/* Returns the files of all processes as one file system: a path with a component hcache.rankR
 * (STORE_RANK) is at process R modulo their number, any other at process 0. The result owns `own`,
 * and is `own` if there is no other process. */
struct io *peers_disks(struct io *own);

#endif
