/* restore_direct.c - reads from the disk straight into device memory: of a GPU (GPUDirect Storage),
 * or of the ranks of a group, where each process reads its own disk for all of them and computes
 * the checksum.
 *
 *   I/O thread      store_read_place (which file, where) -> the device's reader -> the group's twin
 *   compute lane    checksum of the twin, then as for a group that was copied up
 *
 * The host never sees these bytes. So the device must compute the checksums (restore_up.c), and the
 * store's records must be in files. The I/O thread submits and collects in its step, and waits
 * between steps for a few milliseconds at a time, so reads that hang do not delay look-ups.
 *
 * A read that the device's reader refuses or fails is read again in the ordinary way, which then
 * reports the cause. From then on all reads go the ordinary way, with one line in the log. If no
 * read ends for as long as the store allows (store_opts.stuck_ns), all are cancelled and count
 * as failed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "restore/restore_impl.h"
#include "save/saver.h"

const char *const restore_direct_names[] = {"auto", "off", "on", NULL};

/* Returns why reads cannot go straight into device memory, or NULL if they can. */
static const char *why_not(const struct restore_pipeline *rr)
{
    const struct device *d = rr->o.model->dev;
    if (rr->check == NULL && d->n_ranks * d->n_stages == 1)
        return "direct reads need one device with memory of its own that computes the "
               "checksums (not --checksums host)";
    if (!store_has_files(rr->o.store))
        return "the store has to be in files, and its reads not throttled";
    return NULL;
}

int restore_direct_open(struct restore_pipeline *rr, struct err *err)
{
    struct err why = {0};
    const char *no = why_not(rr);
    if (rr->o.direct == RESTORE_DIRECT_OFF ||
        (no != NULL && rr->o.direct == RESTORE_DIRECT_AUTO))
        return 0;
    int rc = no != NULL ? err_set(&why, ERR_UNSUPPORTED, "%s", no)
                        : file_reader_open(rr->o.model->dev, &rr->twins[0], rr->n_slots,
                                           &rr->files, &why);
    rr->is_direct = rc == 0;
    if (rc == 0)
        log_info("restores read from the disk directly into the device's memory");
    else if (rr->o.direct == RESTORE_DIRECT_ON)
        return err_set(err, rc, "gpu-direct on: %.200s", why.msg);
    else
        log_info("restores read through host memory: %.200s", why.msg);
    return 0;
}

void restore_direct_close(struct restore_pipeline *rr)
{
    file_reader_close(rr->files);
    rr->files = NULL;
}

/* Ends direct reads: from now on restores read in the ordinary way. */
static void give_up(struct restore_pipeline *rr, const char *why)
{
    if (rr->is_direct)
        log_warn("restores read through host memory from now on: %.200s", why);
    rr->is_direct = false;
}

bool restore_direct_submit(struct restore_pipeline *rr, struct group *g)
{
    struct err why = {0};
    g->is_direct = false;
    if (!rr->is_direct)
        return false;
    for (int i = 0; i < g->n_chunks; i++) {
        struct store_place *at = &g->place[i];
        const struct store_form *f = &at->form;
        if (store_read_place(rr->o.store, &g->reads[i], at) != 0 ||
            (rr->check != NULL && (f->is_packed || f->is_sealed || f->begin > 0)))
            return false;
        size_t n_bytes = f->is_packed ? group_record_bytes(rr, g, i)
                                      : f->n_bytes - (f->is_sealed ? SEAL_BYTES : 0);
        g->from[i] = (struct file_read){
            .fd = at->fd,
            .offset = at->offset,
            .bytes = at->bytes,
            .form = f,
            .n_bytes = n_bytes,
            .by_heads = g->kind == STORE_KV &&
                        n_bytes == record_bytes(rr->o.model, g->layer, STORE_KV),
            .dst = g->twin + (size_t)i * rr->record_room[g->kind]};
    }
    if (file_reader_submit(rr->files, g->from, g->n_chunks, g, &why) != 0) {
        give_up(rr, why.msg);
        return false;
    }
    g->is_direct = true;
    if (rr->n_direct++ == 0)
        rr->direct_silent_ns = 0;
    return true;
}

void restore_direct_wait(struct restore_pipeline *rr, int64_t most_ns)
{
    void *user = NULL;
    if (rr->direct_ended != NULL)
        return;
    rr->direct_rc = file_reader_wait(rr->files, most_ns, &user, &rr->direct_err);
    rr->direct_ended = user;
    rr->direct_silent_ns = user != NULL ? 0 : rr->direct_silent_ns + most_ns;
    if (rr->direct_silent_ns >= store_stuck_ns(rr->o.store)) {
        give_up(rr, "the disk does not answer");
        file_reader_cancel(rr->files);
        rr->direct_silent_ns = 0;
    }
}

struct group *restore_direct_collect(struct restore_pipeline *rr, bool *again)
{
    struct group *g = rr->direct_ended;
    *again = false;
    if (g == NULL)
        return NULL;
    rr->direct_ended = NULL;
    rr->n_direct--;
    *again = rr->direct_rc != 0;
    for (int i = 0; i < g->n_chunks; i++)
        *again |= g->from[i].status != 0 && g->from[i].status != -ECANCELED;
    if (*again) {
        char text[60];
        snprintf(text, sizeof text, "a read of layer %d failed", g->layer);
        give_up(rr, rr->direct_rc != 0 ? rr->direct_err.msg : text);
        return g;
    }
    for (int i = 0; i < g->n_chunks; i++)
        store_read_end(&g->reads[i], g->from[i].status == 0 ? 0 : -ETIMEDOUT);
    return g;
}
