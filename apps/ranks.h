/* ranks.h - starts the processes of a model that is shared over ranks and stages.
 *
 *   hcache serve MODEL --tensor-parallel 2
 *     `- mpirun -np 2 hcache serve MODEL --tensor-parallel 2
 *          |- hcache   process 0: the server
 *          `- hcache   process 1: a peer (tensor/peers.h)
 *
 * The first process stays, passes signals on, and ends with the job's exit code.  A program that
 * mpirun has started itself is one of the ranks and starts nothing. */
#ifndef APPS_RANKS_H
#define APPS_RANKS_H

/* Returns how many processes the command line, its environment and its config file ask for.  1: the
 * command computes in one process, or its options are wrong, which it says itself. */
int ranks_wanted(int argc, char **argv);
/* Runs the command line as n processes of this machine. Returns the exit code of the job: that of
 * process 0, or 128 + the signal that ended a process; 1, with a message: Open MPI is missing. */
int ranks_run(int n, char **argv);

#endif
