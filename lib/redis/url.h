/* url.h - the address of a shared tier: redis://[user:password@]host[:port][/db], or rediss://
 * over TLS. Pure.
 *
 * User and password may contain percent escapes (%40 is @). An IPv6 address stands in brackets.
 * No message contains the password. */
#ifndef REDIS_URL_H
#define REDIS_URL_H

#include <stdbool.h>

#include "base/err.h"

enum { REMOTE_URL_BYTES = 256, REMOTE_DEFAULT_PORT = 6379, REMOTE_MAX_DB = 65535 };

struct remote_url {
    char host[REMOTE_URL_BYTES];
    char user[REMOTE_URL_BYTES];     /* "": the default user */
    char password[REMOTE_URL_BYTES]; /* "": no password */
    int port, db;
    bool has_tls;
};

/* Parses an address. Returns 0, or ERR_USAGE with a message. */
int remote_url_parse(const char *text, struct remote_url *out, struct err *err);
/* Writes "redis://host:port/db" or "rediss://...", for messages. */
void remote_url_text(const struct remote_url *u, char *out, int n_out);

#endif
