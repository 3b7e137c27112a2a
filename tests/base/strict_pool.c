/* strict_pool.c - ends a test program that destroys a pool of KV blocks in a wrong state.
 *
 * When a pool is destroyed, its counters must agree with its blocks, no table may have a block, and
 * no announced request may still wait for a block. The linker directs the calls of kv_pool_destroy
 * to this function (--wrap). */
#include <stdio.h>
#include <stdlib.h>

#include "restore/kvcache.h"

void __real_kv_pool_destroy(struct kv_pool *p);
void __wrap_kv_pool_destroy(struct kv_pool *p);

static void end(const char *why, int n)
{
    fprintf(stderr, "kv_pool_destroy: %s (%d)\n", why, n);
    abort();
}

void __wrap_kv_pool_destroy(struct kv_pool *p)
{
    if (p == NULL)
        return;
    int n_used = kv_pool_n_blocks(p) - kv_pool_free_blocks(p);
    if (!kv_pool_audit(p))
        end("the counters do not agree with the blocks", 0);
    if (n_used > 0)
        end("blocks are in use", n_used);
    if (kv_pool_n_expected(p) > 0)
        end("requests wait for blocks", (int)kv_pool_n_expected(p));
    __real_kv_pool_destroy(p);
}
