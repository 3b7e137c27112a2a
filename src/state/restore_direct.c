/* restore_direct.c - reads of a restore that go from the disk into the device's memory by themselves (GPUDirect Storage).
 *
 *   I/O thread      place (the store: which file, where) -> the device's reader -> the group's twin
 *   compute lane    checksum of the twin, then as for a group that came up
 *
 * Only where the device checks what it has (restore_up.c), for nobody else sees these bytes, and where the store's records are in
 * files.  What the device's reader refuses, or fails, is read again in the ordinary way, which then says what is
 * wrong; from then on so is everything, with one line in the log.  A disk that does not answer has its reads cancelled
 * after as long as the store allows (store_opts.stuck_ns), and they have failed, as in a reader of the store. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "state/restore_impl.h"

int restore_direct_parse(const char *text, enum restore_direct *out, struct err *err)
{
    static const char *const names[] = {"auto", "off", "on"};
    *out = RESTORE_DIRECT_AUTO;
    for (int i = 0; text != NULL && i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum restore_direct)i;
            return 0;
        }
    }
    return text == NULL
               ? 0
               : err_set(err, ERR_USAGE, "gpu-direct '%s': must be auto, on or off", text);
}

static const char *why_not(const struct restore_pipeline *rr)
{
    if (rr->check == NULL)
        return "the device has to check what it reads (one device with memory of its own, "
               "--checksums is not host)";
    if (!store_has_files(rr->o.store))
        return "the store has to be in files, and its reads not throttled";
    return NULL;
}

int restore_direct_open(struct restore_pipeline *rr, struct err *err)
{
    struct err why = {0};
    const char *no = why_not(rr);
    if (rr->o.direct == RESTORE_DIRECT_OFF || (no != NULL && !rr->o.direct))
        return 0;
    int rc = no != NULL ? err_set(&why, ERR_UNSUPPORTED, "%s", no)
                        : file_reader_open(rr->o.model->dev, &rr->twins[0], rr->n_slots,
                                           &rr->files, &why);
    rr->is_direct = rc == 0;
    if (rc == 0)
        log_info("restores read from the disk straight into the device's memory");
    else if (rr->o.direct == RESTORE_DIRECT_ON)
        return err_set(err, rc, "gpu-direct on: %.200s", why.msg);
    else
        log_info("restores read by way of host memory: %.200s", why.msg);
    return 0;
}

void restore_direct_close(struct restore_pipeline *rr)
{
    file_reader_close(rr->files);
    rr->files = NULL;
}

/* From now on restores read in the ordinary way. */
static void give_up(struct restore_pipeline *rr, const char *why)
{
    if (rr->is_direct)
        log_warn("restores read by way of host memory from now on: %.200s", why);
    rr->is_direct = false;
}

bool restore_direct_submit(struct restore_pipeline *rr, struct group *g)
{
    struct err why = {0};
    g->is_direct = false;
    if (!rr->is_direct)
        return false;
    for (int i = 0; i < g->n_chunks; i++) {
        struct store_place at;
        if (store_read_place(rr->o.store, &g->reads[i], &at) != 0)
            return false;
        g->from[i] = (struct file_read){.fd = at.fd,
                                        .offset = at.offset,
                                        .bytes = at.bytes,
                                        .dst = g->twin +
                                               (size_t)i * rr->record_room[g->kind]};
    }
    if (file_reader_submit(rr->files, g->from, g->n_chunks, g, &why) != 0) {
        give_up(rr, why.msg);
        return false;
    }
    g->is_direct = true;
    rr->n_direct++;
    return true;
}

/* A read of it failed, and not because it was cancelled. */
static bool has_failed(const struct group *g)
{
    for (int i = 0; i < g->n_chunks; i++)
        if (g->from[i].status != 0 && g->from[i].status != -ECANCELED)
            return true;
    return false;
}

struct group *restore_direct_wait(struct restore_pipeline *rr, bool *again)
{
    struct err why = {0};
    void *user = NULL;
    int rc = file_reader_wait(rr->files, store_stuck_ns(rr->o.store), &user, &why);
    struct group *g = user;
    if (g == NULL) {
        give_up(rr, "the disk does not answer");
        file_reader_cancel(rr->files);
        return NULL;
    }
    rr->n_direct--;
    *again = rc != 0 || has_failed(g);
    if (*again) {
        char text[60];
        snprintf(text, sizeof text, "a read of layer %d failed", g->layer);
        give_up(rr, rc != 0 ? why.msg : text);
        return g;
    }
    for (int i = 0; i < g->n_chunks; i++)
        store_read_end(&g->reads[i], g->from[i].status == 0 ? 0 : -ETIMEDOUT);
    return g;
}
