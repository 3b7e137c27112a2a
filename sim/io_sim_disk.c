/* io_sim_disk.c - the names of a simulated disk, and its crash. See io_sim_disk.h. */
#include "sim/io_sim_disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum name_change_kind { SIM_LINK, SIM_UNLINK, SIM_RENAME };

struct sim_name_change {
    enum name_change_kind kind;
    /* folder that must be synced to make the change durable; for a rename, the new name's folder */
    char *folder;
    char *path; /* the name; for a rename, the new one */
    struct sim_node *node;
    struct sim_name_change *next;
};

/* ---- Paths ------------------------------------------------------------------------------- */

char *sim_disk_path(const char *path)
{
    char *out = xmalloc(strlen(path) + 2);
    size_t n = 0;
    while (*path != 0) {
        size_t len = strcspn(path, "/");
        if (len == 2 && path[0] == '.' && path[1] == '.') {
            free(out);
            return NULL;
        }
        if (len > 0 && !(len == 1 && path[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, path, len);
            n += len;
        }
        path += len;
        path += *path == '/';
    }
    if (n == 0)
        out[n++] = '/';
    out[n] = 0;
    return out;
}

static char *folder_of(const char *path)
{
    char *s = xstrdup(path);
    char *slash = strrchr(s, '/');
    slash[slash == s] = 0;
    return s;
}

/* ---- Sorted names ------------------------------------------------------------------------ */

/* Finds the index of a path, or of the place where it would be inserted. */
static bool names_find(const struct sim_names *t, const char *path, size_t *idx)
{
    size_t lo = 0, hi = t->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int c = strcmp(t->entry[mid].path, path);
        if (c == 0) {
            *idx = mid;
            return true;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *idx = lo;
    return false;
}

static void names_remove_at(struct sim_names *t, size_t idx)
{
    free(t->entry[idx].path);
    sim_node_unref(t->entry[idx].node);
    t->n--;
    memmove(t->entry + idx, t->entry + idx + 1, (t->n - idx) * sizeof t->entry[0]);
}

static void names_remove(struct sim_names *t, const char *path)
{
    size_t idx;
    if (names_find(t, path, &idx))
        names_remove_at(t, idx);
}

static void names_set(struct sim_names *t, const char *path, struct sim_node *node)
{
    size_t idx;
    node->n_refs++;
    if (names_find(t, path, &idx)) {
        sim_node_unref(t->entry[idx].node);
        t->entry[idx].node = node;
        return;
    }
    if (t->n == t->room) {
        t->room = t->room == 0 ? 16 : 2 * t->room;
        t->entry = xrealloc(t->entry, t->room * sizeof t->entry[0]);
    }
    memmove(t->entry + idx + 1, t->entry + idx, (t->n - idx) * sizeof t->entry[0]);
    t->entry[idx] = (struct sim_name){.path = xstrdup(path), .node = node};
    t->n++;
}

static void names_deinit(struct sim_names *t)
{
    while (t->n > 0)
        names_remove_at(t, t->n - 1);
    free(t->entry);
    *t = (struct sim_names){0};
}

/* Makes a change of a name durable. A rename takes the node away from its present durable name. If
 * earlier changes were lost, that name may differ from the rename's old name. */
static void names_apply(struct sim_names *t, const struct sim_name_change *c)
{
    if (c->kind == SIM_UNLINK) {
        names_remove(t, c->path);
        return;
    }
    if (c->kind == SIM_RENAME)
        for (size_t i = t->n; i > 0; i--)
            if (t->entry[i - 1].node == c->node)
                names_remove_at(t, i - 1);
    names_set(t, c->path, c->node);
}

/* ---- The disk ---------------------------------------------------------------------------- */

static void name_change_free(struct sim_name_change *c)
{
    sim_node_unref(c->node);
    free(c->folder);
    free(c->path);
    free(c);
}

static void name_change_add(struct sim_disk *d, enum name_change_kind kind,
                            const char *path, struct sim_node *node)
{
    struct sim_name_change *c = xcalloc(1, sizeof *c);
    c->kind = kind;
    c->folder = folder_of(path);
    c->path = xstrdup(path);
    c->node = node;
    node->n_refs++;
    *d->changes_tail = c;
    d->changes_tail = &c->next;
}

void sim_disk_init(struct sim_disk *d, uint64_t capacity_bytes, struct sim_freed *freed)
{
    *d = (struct sim_disk){.capacity_bytes = capacity_bytes, .freed = freed};
    d->changes_tail = &d->changes;
    struct sim_node *root = sim_node_create(true, NULL);
    names_set(&d->current, "/", root);
    names_set(&d->durable, "/", root);
    root->n_live = 1;
    sim_node_unref(root);
}

void sim_disk_deinit(struct sim_disk *d)
{
    while (d->changes != NULL) {
        struct sim_name_change *c = d->changes;
        d->changes = c->next;
        name_change_free(c);
    }
    names_deinit(&d->current);
    names_deinit(&d->durable);
}

struct sim_node *sim_disk_find(const struct sim_disk *d, const char *path)
{
    size_t idx;
    return names_find(&d->current, path, &idx) ? d->current.entry[idx].node : NULL;
}

/* Returns 0 if a name may be made in the folder of path. */
static int check_folder(const struct sim_disk *d, const char *path)
{
    char *folder = folder_of(path);
    const struct sim_node *n = sim_disk_find(d, folder);
    free(folder);
    if (n == NULL)
        return -ENOENT;
    return n->is_dir ? 0 : -ENOTDIR;
}

int sim_disk_create(struct sim_disk *d, const char *path, bool is_dir)
{
    int rc = sim_disk_find(d, path) != NULL ? -EEXIST : check_folder(d, path);
    if (rc != 0)
        return rc;
    struct sim_node *n = sim_node_create(is_dir, d->freed);
    n->n_live = 1;
    names_set(&d->current, path, n);
    name_change_add(d, SIM_LINK, path, n);
    sim_node_unref(n);
    return 0;
}

static void drop_live(struct sim_disk *d, struct sim_node *n)
{
    if (--n->n_live == 0)
        d->used_sectors -= n->current.n_allocated;
}

void sim_disk_hold(struct sim_node *n)
{
    n->n_refs++;
    n->n_live++;
}

void sim_disk_release(struct sim_disk *d, struct sim_node *n)
{
    drop_live(d, n);
    sim_node_unref(n);
}

const char *sim_disk_next_name(const struct sim_disk *d, const char *folder, size_t *at)
{
    size_t len = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    for (size_t i = *at; i < d->current.n; i++) {
        const char *path = d->current.entry[i].path;
        if (strncmp(path, folder, len) != 0 || path[len] != '/' || path[len + 1] == 0)
            continue;
        if (strchr(path + len + 1, '/') != NULL)
            continue;
        *at = i + 1;
        return path + len + 1;
    }
    return NULL;
}

int sim_disk_unlink(struct sim_disk *d, const char *path)
{
    struct sim_node *n = sim_disk_find(d, path);
    if (n == NULL)
        return -ENOENT;
    size_t at = 0;
    if (n->is_dir && (strcmp(path, "/") == 0 || sim_disk_next_name(d, path, &at) != NULL))
        return -ENOTEMPTY;
    name_change_add(d, SIM_UNLINK, path, n);
    drop_live(d, n);
    names_remove(&d->current, path);
    return 0;
}

int sim_disk_rename(struct sim_disk *d, const char *from, const char *to)
{
    struct sim_node *n = sim_disk_find(d, from);
    struct sim_node *old = sim_disk_find(d, to);
    int rc = n == NULL ? -ENOENT : check_folder(d, to);
    if (rc != 0)
        return rc;
    if (n->is_dir || (old != NULL && old->is_dir))
        return -EISDIR;
    if (n == old)
        return 0;
    if (old != NULL)
        drop_live(d, old);
    name_change_add(d, SIM_RENAME, to, n);
    names_set(&d->current, to, n);
    names_remove(&d->current, from);
    return 0;
}

int sim_disk_sync_folder(struct sim_disk *d, const char *path)
{
    const struct sim_node *n = sim_disk_find(d, path);
    if (n == NULL || !n->is_dir)
        return n == NULL ? -ENOENT : -ENOTDIR;
    struct sim_name_change **at = &d->changes;
    while (*at != NULL) {
        struct sim_name_change *c = *at;
        if (strcmp(c->folder, path) != 0) {
            at = &c->next;
            continue;
        }
        names_apply(&d->durable, c);
        *at = c->next;
        name_change_free(c);
    }
    d->changes_tail = at;
    return 0;
}

int sim_disk_change(struct sim_disk *d, struct sim_node *n, enum sim_change_kind kind,
                    const void *bytes, uint64_t offset, uint64_t length)
{
    if (kind != SIM_PUNCH && offset + length > d->capacity_bytes)
        return kind == SIM_TRUNCATE ? -EFBIG : -ENOSPC;
    uint64_t need = kind == SIM_WRITE || kind == SIM_ALLOCATE
                        ? sim_node_sectors_needed(n, offset, length)
                        : 0;
    if (need > 0 && (d->used_sectors + need) * SIM_SECTOR > d->capacity_bytes)
        return -ENOSPC;
    size_t before = n->current.n_allocated;
    sim_node_change(n, kind, bytes, offset, length);
    d->used_sectors += n->current.n_allocated - before;
    return 0;
}

/* ---- Crash ------------------------------------------------------------------------------- */

/* Computes the durable names after a crash; they still refer to the nodes from before the crash. */
static void names_after_crash(const struct sim_disk *d, struct rng *rng,
                              struct sim_names *out)
{
    *out = (struct sim_names){0};
    for (size_t i = 0; i < d->durable.n; i++)
        names_set(out, d->durable.entry[i].path, d->durable.entry[i].node);
    uint64_t n_changes = 0;
    for (const struct sim_name_change *c = d->changes; c != NULL; c = c->next)
        n_changes++;
    bool in_order = rng_below(rng, 2) == 0;
    uint64_t keep = rng_below(rng, n_changes + 1);
    for (const struct sim_name_change *c = d->changes; c != NULL; c = c->next) {
        bool applied = in_order ? keep > 0 : rng_below(rng, 2) == 0;
        keep -= keep > 0;
        if (applied)
            names_apply(out, c);
    }
}

static bool has_folder(const struct sim_names *t, const char *path)
{
    char *folder = folder_of(path);
    size_t idx;
    bool found = names_find(t, folder, &idx) && t->entry[idx].node->is_dir;
    free(folder);
    return found;
}

void sim_disk_after_crash(const struct sim_disk *d, uint64_t seed, struct sim_freed *freed,
                          struct sim_disk *out)
{
    struct rng rng = {.s = rng_mix(seed)};
    struct sim_names left;
    names_after_crash(d, &rng, &left);
    enum sim_crash_mode mode = (enum sim_crash_mode)rng_below(&rng, SIM_CRASH_GARBAGE + 1);
    sim_disk_init(out, d->capacity_bytes, freed);
    for (size_t i = 0; i < left.n; i++) {
        const char *path = left.entry[i].path;
        /* A file without its folder is lost. */
        if (strcmp(path, "/") == 0 || !has_folder(&out->current, path))
            continue;
        struct sim_node *n = sim_node_after_crash(left.entry[i].node, mode, &rng, freed);
        if (freed != NULL) /* the new node has the sectors */
            left.entry[i].node->freed = NULL;
        n->n_live = 1;
        names_set(&out->current, path, n);
        names_set(&out->durable, path, n);
        out->used_sectors += n->current.n_allocated;
        sim_node_unref(n);
    }
    names_deinit(&left);
}

static bool has(const uint8_t *bytes, size_t n_bytes, const void *what, size_t n)
{
    return n_bytes >= n && memmem(bytes, n_bytes, what, n) != NULL;
}

size_t sim_disk_raw_count(const struct sim_disk *d, const void *what, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < d->durable.n; i++) {
        const struct sim_image *im = &d->durable.entry[i].node->durable;
        count += has(im->bytes, im->n_sectors * SIM_SECTOR, what, n);
    }
    for (size_t i = 0; d->freed != NULL && i < d->freed->n; i++)
        count += has(d->freed->bytes + i * SIM_SECTOR, SIM_SECTOR, what, n);
    return count;
}

uint64_t sim_disk_digest(const struct sim_disk *d)
{
    uint64_t h = 0;
    for (size_t i = 0; i < d->durable.n; i++) {
        const struct sim_name *e = &d->durable.entry[i];
        const struct sim_image *im = &e->node->durable;
        uint64_t part[4] = {h, checksum64(e->path, strlen(e->path)), im->size,
                            im->size != 0 ? checksum64(im->bytes, (size_t)im->size) : 0};
        h = checksum64(part, sizeof part);
    }
    return h;
}
