#include "tests/engine/found.h"

#include <string.h>

#include "base/mem.h"

struct restore *found_restore(struct restore_pipeline *rr, struct chunk_node *nodes, int n,
                              const char *kinds)
{
    struct restore *r = xcalloc(1, sizeof *r);
    *r = (struct restore){.rr = rr, .state = RESTORE_FOUND, .owns_hits = true};
    pthread_mutex_init(&r->fault_lock, NULL);
    r->hits = xcalloc((size_t)n, sizeof *r->hits);
    for (int c = 0; c < n; c++) {
        /* live, and pinned by others as well */
        nodes[c] = (struct chunk_node){.n_live = 1, .n_pins = 1000};
        r->hits[c] = (struct store_hit){.n_tokens = 64, .impl = &nodes[c]};
        for (int l = 0; l < rr->o.model->cfg.n_layers; l++) {
            if (strchr(kinds, 'H') != NULL)
                store_mask_add(&r->hits[c].mask, l, STORE_HIDDEN);
            if (strchr(kinds, 'K') != NULL)
                store_mask_add(&r->hits[c].mask, l, STORE_KV);
        }
    }
    r->found = (struct restore_found){.hits = r->hits, .n_hits = n};
    r->job.hits = r->hits;
    pthread_mutex_lock(&rr->lock);
    r->next = rr->runs;
    rr->runs = r;
    pthread_mutex_unlock(&rr->lock);
    return r;
}

struct group_list found_take_slots(struct restore_pipeline *rr)
{
    pthread_mutex_lock(&rr->lock);
    struct group_list slots = rr->free;
    rr->free = (struct group_list){0};
    pthread_mutex_unlock(&rr->lock);
    return slots;
}

void found_give_slots(struct restore_pipeline *rr, struct group_list slots)
{
    pthread_mutex_lock(&rr->lock);
    rr->free = slots;
    pthread_mutex_unlock(&rr->lock);
}
