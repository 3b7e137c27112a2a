/* several.h - a server of several models: which one a call or a batch uses; private to src/server.
 *
 * A call whose route names a model takes it before its route's function runs, and gives it back
 * when it ends. If the model is being loaded, the call waits with the early ones
 * (call_wait_early). */
#ifndef SERVER_SEVERAL_H
#define SERVER_SEVERAL_H

#include "server/call.h"

/* Takes the model that the call names into use, and sets c->truncation. With one model only the
 * latter. Returns 0; 1 if the call waits, since the model is being loaded; or -1 with *f. */
int several_take(struct call *c, struct fault *f);
void several_give(struct call *c);

/* As in runner_opts: the model of a batch is the one that its first line names. arg: the server. */
int several_borrow(void *arg, const char *input, uint64_t *ticket, struct client *client,
                   int *loan, struct err *err);
bool several_must_return(void *arg, int loan);
void several_give_back(void *arg, int loan);

#endif
