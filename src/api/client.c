/* client.c - see client.h. */
#include "api/client.h"

#include <string.h>

#include "base/mem.h"

int client_check_model(const struct client *c, const char *name, struct fault *f)
{
    if (name == NULL || strcmp(name, c->model_name) == 0)
        return 0;
    return fault_set(f, 404, "model_not_found", "model",
                     "there is no model '%.100s', only '%.100s'", name, c->model_name);
}

char *client_state_salt(const struct client *c, const char *cache_salt)
{
    if (cache_salt == NULL || cache_salt[0] == 0)
        return c->salt != NULL ? xstrdup(c->salt) : NULL;
    /* A key's salt has no "/", so different pairs give different texts. */
    return xasprintf("%s/%s", c->salt != NULL ? c->salt : "", cache_salt);
}
