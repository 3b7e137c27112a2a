/* cmd_store.c - hcache store: lists and verifies saved state, erases it, and gives space back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "apps/api_keys.h"
#include "apps/json_print.h"
#include "apps/store_key.h"
#include "save/repack.h"
#include "seal/seal_file.h"
#include "apps/bytes_text.h"
#include "apps/cmds.h"
#include "apps/medium.h"
#include "apps/option_tables.h"
#include "apps/store_advise.h"
#include "apps/store_bundle.h"
#include "apps/store_titles.h"
#include "apps/store_turns.h"
#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/progress.h"
#include "base/json.h"
#include "io/io.h"
#include "api/answers.h"
#include "store/store.h"

struct store_args {
    struct opt_list dirs;
    struct opt_list keys;
    const char *file;
    const char *conversation, *conversations, *api_key_file;
    struct opt_list api_key;
    bool all;
    bool chunks;
    bool why;
    bool json;
    bool advise, plain, pack;
    int64_t idle_ttl_s;
};

#define JSON_ROW                                                                           \
    {                                                                                      \
        "json", OPT(struct store_args, json), .help = "print one JSON object"              \
    }

static const struct opt dir_positionals[] = {
    {"DIR[,DIR...]", OPT(struct store_args, dirs), .required = true, .min = 1,
     .max = STORE_MAX_DEVICES, .help = "the store's directories, in their order"},
    {0},
};

/* --- shared by the subcommands ---------------------------------------------------------------- */

struct session {
    struct io *io;
    struct store *store;
    struct seal *seal;             /* of the files beside the store; NULL: they are plain */
    char *dirs[STORE_MAX_DEVICES]; /* the DIR arguments, split at commas */
    int n_dirs;
};

static int report(const struct opt_cmd *cmd, const struct err *e)
{
    fprintf(stderr, "hcache %s: %s\n", cmd->name, e->msg);
    return e->code == ERR_USAGE ? 2 : 1;
}

static int dirs_split(struct session *s, const struct opt_list *args, struct err *err)
{
    for (int i = 0; i < args->n; i++) {
        for (const char *p = args->items[i];; p++) {
            size_t n = strcspn(p, ",");
            if (s->n_dirs == STORE_MAX_DEVICES)
                return err_set(err, ERR_USAGE, "a store has at most %d directories",
                               STORE_MAX_DEVICES);
            if (n == 0)
                return err_set(err, ERR_USAGE, "a directory's name is empty in \"%s\"",
                               args->items[i]);
            s->dirs[s->n_dirs++] = xasprintf("%.*s", (int)n, p);
            p += n;
            if (*p == 0)
                break;
        }
    }
    return 0;
}

static int session_open(struct session *s, const struct store_args *a, bool read_only,
                        struct err *err)
{
    *s = (struct session){0};
    int rc = dirs_split(s, &a->dirs, err);
    if (rc != 0)
        return rc;
    uint8_t key[HCACHE_STORE_KEY_BYTES];
    const char *from = getenv("HCACHE_STORE_KEY");
    if (from != NULL && *from == 0)
        return err_set(err, ERR_USAGE, "the variable HCACHE_STORE_KEY is empty");
    rc = from != NULL ? store_key_read(from, key, err) : 0;
    if (rc != 0)
        return rc;
    s->seal = from != NULL ? seal_shared(key) : NULL;
    s->io = io_machine_open(NULL);
    struct store_opts opts = {.io = s->io,
                              .dirs = (const char *const *)s->dirs,
                              .n_dirs = s->n_dirs,
                              .key = from != NULL ? key : NULL,
                              .read_only = read_only};
    rc = store_open(&opts, &s->store, err);
    explicit_bzero(key, sizeof key);
    if (rc == 0 && store_beside(s->store) != NULL)
        fprintf(stderr, "hcache store: %s has the store open and may change it meanwhile\n",
                store_beside(s->store));
    return rc;
}

static void session_close(struct session *s)
{
    store_close(s->store);
    io_close(s->io);
    seal_free(s->seal);
    for (int i = 0; i < s->n_dirs; i++)
        free(s->dirs[i]);
}

/* --- the chunks, as a list -------------------------------------------------------------------- */

struct list {
    struct store_entry *e;
    uint64_t n, n_tokens;
    int n_layers; /* 1 + the highest layer with a record in any chunk */
};

static int list_add(void *arg, const struct store_entry *e)
{
    struct list *l = arg;
    l->e = xgrow(l->e, l->n, sizeof l->e[0]);
    l->e[l->n++] = *e;
    l->n_tokens += (uint64_t)e->n_tokens;
    for (int i = l->n_layers; i < STORE_MAX_LAYERS; i++)
        if (store_mask_has(&e->mask, i, STORE_HIDDEN) ||
            store_mask_has(&e->mask, i, STORE_KV))
            l->n_layers = i + 1;
    return 0;
}

/* Writes a letter per layer: H hidden state, K keys and values, B both, - nothing. */
static void mask_text(const struct store_mask *m, int n_layers,
                      char out[STORE_MAX_LAYERS + 1])
{
    for (int l = 0; l < n_layers; l++)
        out[l] =
            "-HKB"[store_mask_has(m, l, STORE_HIDDEN) + 2 * store_mask_has(m, l, STORE_KV)];
    out[n_layers] = 0;
}

static void time_text(int64_t wall_s, char out[32])
{
    time_t t = (time_t)wall_s;
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(out, 32, "%Y-%m-%d %H:%M", &tm);
}

/* --- why a chunk is kept or unusable ---------------------------------------------------------- */

struct why {
    bool reachable;    /* all chunks before it are stored */
    bool is_leaf;      /* no stored chunk continues it */
    uint64_t evict_at; /* position in the order of eviction among the leaves, from 1 */
};

/* The entries that the indices refer to while qsort runs. */
static const struct store_entry *sorted_entries;

static int by_key(const void *a, const void *b)
{
    const struct store_entry *x = &sorted_entries[*(const uint64_t *)a],
                             *y = &sorted_entries[*(const uint64_t *)b];
    return memcmp(x->key.b, y->key.b, sizeof x->key.b);
}

/* Order of eviction: chunks without a pin, then pinned ones, then guaranteed ones (never evicted);
 * within each, the least recently used first. */
static int by_eviction(const void *a, const void *b)
{
    const struct store_entry *x = &sorted_entries[*(const uint64_t *)a],
                             *y = &sorted_entries[*(const uint64_t *)b];
    bool x_pinned = x->pinned_until_wall_s != 0, y_pinned = y->pinned_until_wall_s != 0;
    if (x->is_guaranteed != y->is_guaranteed)
        return x->is_guaranteed ? 1 : -1;
    if (x_pinned != y_pinned)
        return x_pinned ? 1 : -1;
    return x->tick < y->tick ? -1 : x->tick > y->tick;
}

/* Returns the index of the entry with this key; l->n if there is none. */
static uint64_t entry_find(const struct list *l, const uint64_t *order,
                           const struct sha256 *key)
{
    uint64_t lo = 0, hi = l->n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int c = memcmp(l->e[order[mid]].key.b, key->b, sizeof key->b);
        if (c == 0)
            return order[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return l->n;
}

/* Returns one `struct why` per entry, in an array that the caller frees. Parents precede children
 * in the list. */
static struct why *why_of(const struct list *l)
{
    struct why *w = xcalloc(l->n + 1, sizeof w[0]);
    uint64_t *order = xmalloc((l->n + 1) * sizeof order[0]), n_leaves = 0;
    for (uint64_t i = 0; i < l->n; i++) {
        order[i] = i;
        w[i].is_leaf = true;
    }
    sorted_entries = l->e;
    qsort(order, l->n, sizeof order[0], by_key);
    for (uint64_t i = 0; i < l->n; i++) {
        uint64_t parent = entry_find(l, order, &l->e[i].parent);
        w[i].reachable = l->e[i].chunk_idx == 0 || (parent < l->n && w[parent].reachable);
        if (parent < l->n)
            w[parent].is_leaf = false;
    }
    for (uint64_t i = 0; i < l->n; i++)
        if (w[i].is_leaf)
            order[n_leaves++] = i;
    qsort(order, n_leaves, sizeof order[0], by_eviction);
    for (uint64_t i = 0; i < n_leaves; i++)
        w[order[i]].evict_at = i + 1;
    free(order);
    return w;
}

static void why_text(const struct store_entry *e, const struct why *w, char *out, size_t n)
{
    char until[32], place[64];
    if (w->is_leaf)
        snprintf(place, sizeof place, "evicted as number %" PRIu64, w->evict_at);
    else
        snprintf(place, sizeof place, "kept because other chunks continue it");
    if (w->is_leaf && e->is_guaranteed)
        snprintf(place, sizeof place, "never evicted");
    if (!w->reachable) {
        snprintf(out, n, "cannot be found: a chunk before it is missing; gc removes it");
    } else if (e->pinned_until_wall_s != 0) {
        time_text(e->pinned_until_wall_s, until);
        snprintf(out, n, "%s until %s, %s", e->is_guaranteed ? "guaranteed" : "pinned",
                 until, place);
    } else if (e->is_guaranteed) {
        snprintf(out, n, "guaranteed, %s", place);
    } else if (e->expires_wall_s != 0) {
        time_text(e->expires_wall_s, until);
        snprintf(out, n, "expires %s, %s", until, place);
    } else {
        snprintf(out, n, "%s", place);
    }
}

/* --- stat ------------------------------------------------------------------------------------- */

static const struct opt stat_options[] = {
    JSON_ROW,
    {0},
};
static const struct opt advise_options[] = {
    {"advise", OPT(struct store_args, advise),
     .help = "advise how large the store should be, from the times its contexts were last "
             "used"},
    JSON_ROW,
    {0},
};
static const struct opt_cmd stat_cmd = {
    .name = "store stat",
    .summary = "Shows how much a store holds, and for which models.",
    .positionals = dir_positionals,
    .options = advise_options,
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_stat = &stat_cmd;

struct model_share {
    struct sha256 fingerprint;
    uint64_t n_chunks, n_contexts, n_bytes;
};

static int shares_of(const struct list *l, struct model_share **out)
{
    struct model_share *shares = NULL;
    int n = 0;
    for (uint64_t i = 0; i < l->n; i++) {
        const struct store_entry *e = &l->e[i];
        int at = 0;
        while (at < n &&
               memcmp(&shares[at].fingerprint, &e->fingerprint, sizeof e->fingerprint) != 0)
            at++;
        if (at == n) {
            shares = xrealloc(shares, (size_t)++n * sizeof shares[0]);
            shares[at] = (struct model_share){.fingerprint = e->fingerprint};
        }
        shares[at].n_chunks++;
        shares[at].n_contexts += e->chunk_idx == 0;
        shares[at].n_bytes += e->bytes;
    }
    *out = shares;
    return n;
}

static void stat_json(const struct store_stats *st, uint64_t n_tokens, const char *kept,
                      const struct model_share *shares, int n)
{
    char hex[65];
    struct json *models = json_new_array();
    struct json *j = json_make(
        "{devices: %d, chunks: %lu, tokens: %lu, partial_chunks: %lu, "
        "extents: %lu, used_bytes: %lu, file_bytes: %lu, damaged: %lu, "
        "pins: %lu, expiring_chunks: %lu, guarantees: %lu, "
        "guaranteed_bytes: %lu, overwrites_in_place: %p, "
        "not_in_place_because: %s}",
        st->n_devices, st->n_chunks, n_tokens, st->n_partial, st->n_extents, st->used_bytes,
        st->file_bytes, st->n_corrupt, st->n_pins, st->n_expiring, st->n_guarantees,
        st->guaranteed_bytes, json_new_bool(kept[0] == 0), kept[0] != 0 ? kept : NULL);
    for (int i = 0; i < n; i++) {
        sha256_hex(&shares[i].fingerprint, hex);
        json_push(models,
                  json_make("{fingerprint: %s, first_chunks: %lu, chunks: %lu, bytes: %lu}",
                            hex, shares[i].n_contexts, shares[i].n_chunks,
                            shares[i].n_bytes));
    }
    json_put(j, "models", models);
    json_print(j, 2);
}

static void stat_text(const struct store_stats *st, uint64_t n_tokens, const char *kept,
                      const struct model_share *shares, int n)
{
    char used[32], files[32], hex[65];
    bytes_text(st->used_bytes, used);
    bytes_text(st->file_bytes, files);
    printf("%" PRIu64 " chunk%s (%" PRIu64 " token%s) in %" PRIu64
           " extent%s on %d director%s\n",
           st->n_chunks, plural(st->n_chunks), n_tokens, plural(n_tokens), st->n_extents,
           plural(st->n_extents), st->n_devices, st->n_devices == 1 ? "y" : "ies");
    printf("%s of state, in files of %s\n", used, files);
    if (kept[0] != 0)
        printf("erased bytes may stay on the medium: %s\n", kept);
    if (st->n_pins > 0)
        printf("%" PRIu64 " context%s pinned\n", st->n_pins, plural(st->n_pins));
    if (st->n_expiring > 0)
        printf("%" PRIu64 " chunk%s with a time to live\n", st->n_expiring,
               plural(st->n_expiring));
    if (st->n_guarantees > 0) {
        bytes_text(st->guaranteed_bytes, used);
        printf("%s guaranteed, by %" PRIu64 " pin%s\n", used, st->n_guarantees,
               plural(st->n_guarantees));
    }
    if (st->n_corrupt > 0)
        printf("%" PRIu64 " chunk%s at least partly damaged: store verify says why\n",
               st->n_corrupt, plural(st->n_corrupt));
    for (int i = 0; i < n; i++) {
        bytes_text(shares[i].n_bytes, used);
        sha256_hex(&shares[i].fingerprint, hex);
        printf("  model %.8s..  %" PRIu64 " chunk%s, %" PRIu64 " of them first, %s\n", hex,
               shares[i].n_chunks, plural(shares[i].n_chunks), shares[i].n_contexts, used);
    }
}

static int run_stat(const struct store_args *a, struct err *err)
{
    struct session s;
    struct list l = {0};
    struct store_stats st;
    int rc = session_open(&s, a, true, err);
    if (rc == 0 && a->advise) {
        store_print_advice(s.store, a->json);
        session_close(&s);
        return 0;
    }
    if (rc == 0)
        rc = store_each(s.store, list_add, &l, err);
    if (rc == 0) {
        struct model_share *shares;
        int n = shares_of(&l, &shares);
        char kept[160] = "";
        store_stats(s.store, &st);
        for (int i = 0; i < s.n_dirs && medium_check(s.dirs[i], kept, sizeof kept); i++)
            ;
        (a->json ? stat_json : stat_text)(&st, l.n_tokens, kept, shares, n);
        free(shares);
    }
    free(l.e);
    session_close(&s);
    return rc;
}

/* --- ls --------------------------------------------------------------------------------------- */

static const struct opt ls_options[] = {
    {"chunks", OPT(struct store_args, chunks),
     .help = "a line for every chunk, with its key"},
    {"why", OPT(struct store_args, why),
     .help = "also show why a chunk is kept (pinned, continued, or its order of eviction), "
             "or why it cannot be found"},
    JSON_ROW,
    {0},
};
static const struct opt_cmd ls_cmd = {
    .name = "store ls",
    .summary = "Lists stored chains of chunks. A letter per layer shows the hidden state "
               "(H), keys and values (K), both (B) or nothing (-). The title is the "
               "conversation's (there are no titles while a server has the store open).",
    .positionals = dir_positionals,
    .options = ls_options,
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_ls = &ls_cmd;

/* Returns the title of the conversation of chunks [from, to), found at the last chunk that has a
 * title; NULL: none has one. */
static const char *title_of(const struct list *l, const struct store_titles *t,
                            uint64_t from, uint64_t to)
{
    const char *title = NULL;
    while (title == NULL && to > from)
        title = store_titles_find(t, &l->e[--to].key);
    return title;
}

static void ls_json(const struct list *l, const struct why *why,
                    const struct store_titles *t)
{
    char hex[65], mask[STORE_MAX_LAYERS + 1];
    char parent[65], model[65], owner[17];
    struct json *chunks = json_new_array();
    for (uint64_t i = 0; i < l->n; i++) {
        const struct store_entry *e = &l->e[i];
        sha256_hex(&e->key, hex);
        sha256_hex(&e->parent, parent);
        sha256_hex(&e->fingerprint, model);
        mask_text(&e->mask, l->n_layers, mask);
        snprintf(owner, sizeof owner, "%016" PRIx64, e->owner);
        struct json *c = json_make(
            "{key: %s, parent: %s, fingerprint: %s, index: %d, tokens: %d, layers: %s, "
            "bytes: %lu, used_wall_s: %ld, pinned_until_wall_s: %ld, guaranteed: %p, "
            "expires_wall_s: %ld, owner: %s, title: %s}",
            hex, parent, model, e->chunk_idx, e->n_tokens, mask, e->bytes, e->used_wall_s,
            e->pinned_until_wall_s, json_new_bool(e->is_guaranteed), e->expires_wall_s,
            owner, title_of(l, t, i, i + 1));
        if (why != NULL) {
            char text[128];
            why_text(e, &why[i], text, sizeof text);
            json_put_string(c, "why", text);
        }
        json_push(chunks, c);
    }
    json_print(json_make("{chunks: %p}", chunks), 2);
}

/* Returns whether b continues a in the listing and would print the same line. */
static bool joins(const struct store_entry *a, const struct store_entry *b)
{
    return memcmp(&b->parent, &a->key, sizeof a->key) == 0 &&
           memcmp(&a->mask, &b->mask, sizeof a->mask) == 0 &&
           a->pinned_until_wall_s == b->pinned_until_wall_s &&
           a->is_guaranteed == b->is_guaranteed &&
           (a->expires_wall_s != 0) == (b->expires_wall_s != 0) &&
           b->chunk_idx == a->chunk_idx + 1;
}

/* Prints one line for the chunks [from, to) of the list, which are equal. */
static void ls_line(const struct list *l, const struct why *why,
                    const struct store_titles *t, uint64_t from, uint64_t to)
{
    const char *title = title_of(l, t, from, to);
    const struct store_entry *first = &l->e[from], *last = &l->e[to - 1];
    char key[65], fingerprint[65], used[32], size[32], mask[STORE_MAX_LAYERS + 1],
        range[32];
    uint64_t n_bytes = 0;
    int64_t used_wall_s = 0;
    for (uint64_t i = from; i < to; i++) {
        n_bytes += l->e[i].bytes;
        if (l->e[i].used_wall_s > used_wall_s)
            used_wall_s = l->e[i].used_wall_s;
    }
    sha256_hex(&first->key, key);
    sha256_hex(&first->fingerprint, fingerprint);
    mask_text(&first->mask, l->n_layers, mask);
    bytes_text(n_bytes, size);
    time_text(used_wall_s, used);
    snprintf(range, sizeof range, "%u..%u", first->chunk_idx * STORE_CHUNK_TOKENS,
             last->chunk_idx * STORE_CHUNK_TOKENS + (uint32_t)last->n_tokens - 1);
    printf("%-14s %.16s  %.8s  %10s  %-16s  %s", range, key, fingerprint, size, used, mask);
    if (why != NULL) {
        char text[128];
        why_text(last, &why[to - 1], text, sizeof text);
        printf("  %s", text);
    }
    printf(title != NULL ? "  \"%s\"\n" : "\n", title);
}

static void ls_text(const struct list *l, const struct why *why,
                    const struct store_titles *t, bool every_chunk)
{
    uint64_t n_bytes = 0;
    char size[32];
    if (l->n > 0)
        printf("%-14s %-16s  %-8s  %10s  %-16s  %s\n", "TOKENS", "KEY", "MODEL", "SIZE",
               "LAST USED", why != NULL ? "LAYERS, WHY, TITLE" : "LAYERS, TITLE");
    for (uint64_t i = 0, from = 0; i < l->n; i++) {
        if (i + 1 < l->n && !every_chunk && joins(&l->e[i], &l->e[i + 1]))
            continue;
        ls_line(l, why, t, from, i + 1);
        from = i + 1;
    }
    for (uint64_t i = 0; i < l->n; i++)
        n_bytes += l->e[i].bytes;
    bytes_text(n_bytes, size);
    printf("%" PRIu64 " chunk%s, %" PRIu64 " token%s, %s\n", l->n, plural(l->n),
           l->n_tokens, plural(l->n_tokens), size);
}

static int run_ls(const struct store_args *a, struct err *err)
{
    struct session s;
    struct list l = {0};
    int rc = session_open(&s, a, true, err);
    if (rc == 0)
        rc = store_each(s.store, list_add, &l, err);
    struct why *why = rc == 0 && a->why ? why_of(&l) : NULL;
    struct store_titles *titles = rc == 0 ? store_titles_open(s.dirs[0], s.seal) : NULL;
    if (rc == 0 && a->json)
        ls_json(&l, why, titles);
    else if (rc == 0)
        ls_text(&l, why, titles, a->chunks);
    store_titles_close(titles);
    free(why);
    free(l.e);
    session_close(&s);
    return rc;
}

/* --- verify ----------------------------------------------------------------------------------- */

static const struct opt_cmd verify_cmd = {
    .name = "store verify",
    .summary = "Reads and checks everything that is stored. Changes nothing: damaged state "
               "is never used but recomputed. The exit code is 1 if anything is damaged.",
    .positionals = dir_positionals,
    .options = stat_options,
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_verify = &verify_cmd;

struct verify_view {
    struct progress progress;
    char **bad; /* damaged places that were reported */
    uint64_t n_bad;
};

static void verify_bad(void *arg, const char *what)
{
    struct verify_view *v = arg;
    v->bad = xgrow((void *)v->bad, v->n_bad, sizeof v->bad[0]);
    v->bad[v->n_bad++] = xstrdup(what);
}

static void verify_view_deinit(struct verify_view *v)
{
    for (uint64_t i = 0; i < v->n_bad; i++)
        free(v->bad[i]);
    free((void *)v->bad);
}

static bool verify_found(const struct verify_view *v, const char *what)
{
    for (uint64_t i = 0; i < v->n_bad; i++)
        if (strcmp(v->bad[i], what) == 0)
            return true;
    return false;
}

/* Keeps only the damage that the second look has found, too. */
static void verify_confirm(struct verify_view *v, const struct verify_view *again)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < v->n_bad; i++)
        if (verify_found(again, v->bad[i]))
            v->bad[n++] = v->bad[i];
        else
            free(v->bad[i]);
    v->n_bad = n;
}

static void verify_progress(void *arg, uint64_t done_bytes, uint64_t all_bytes)
{
    struct verify_view *v = arg;
    v->progress.total = all_bytes;
    progress_at(&v->progress, done_bytes);
}

static void verify_json(const struct store_verify *r, const struct verify_view *v)
{
    struct json *bad = json_new_array();
    for (uint64_t i = 0; i < v->n_bad; i++)
        json_push_string(bad, v->bad[i]);
    json_print(json_make("{chunks: %lu, records: %lu, bytes: %lu, bad: %lu, damaged: %p}",
                         r->n_chunks, r->n_records, r->n_bytes, r->n_bad, bad),
               2);
}

static int verify_once(const struct store_args *a, struct store_verify *r,
                       struct verify_view *v, bool *beside, struct err *err)
{
    struct session s;
    int rc = session_open(&s, a, true, err);
    if (rc == 0) {
        *beside = store_beside(s.store) != NULL;
        progress_begin(&v->progress, "verifying", PROGRESS_BYTES, 0);
        rc = store_verify(s.store, r, verify_bad, verify_progress, v, err);
        progress_end(&v->progress);
    }
    session_close(&s);
    return rc;
}

static void verify_print(const struct store_args *a, const struct store_verify *r,
                         const struct verify_view *v)
{
    char size[32];
    bytes_text(r->n_bytes, size);
    if (a->json) {
        verify_json(r, v);
        return;
    }
    for (uint64_t i = 0; i < v->n_bad; i++)
        printf("damaged: %s\n", v->bad[i]);
    printf("%" PRIu64 " chunk%s, %" PRIu64 " record%s, %s read: %" PRIu64 " damaged\n",
           r->n_chunks, plural(r->n_chunks), r->n_records, plural(r->n_records), size,
           r->n_bad);
}

/* Beside a running server, an extent that is evicted meanwhile looks damaged. The newer index no
 * longer names that extent, so only damage that a second look finds, too, is reported. */
static int run_verify(const struct store_args *a, struct err *err)
{
    struct store_verify r = {0}, again = {0};
    struct verify_view v = {0}, w = {0};
    bool beside = false;
    int rc = verify_once(a, &r, &v, &beside, err);
    if (rc == 0 && beside && v.n_bad > 0) {
        rc = verify_once(a, &again, &w, &beside, err);
        verify_confirm(&v, &w);
        r.n_bad = v.n_bad;
    }
    if (rc == 0)
        verify_print(a, &r, &v);
    verify_view_deinit(&v);
    verify_view_deinit(&w);
    if (rc != 0)
        return rc;
    return r.n_bad == 0
               ? 0
               : err_set(
                     err, ERR_CORRUPT,
                     "%" PRIu64
                     " damaged: none of it is used; the state is recomputed when needed",
                     r.n_bad);
}

/* --- rm --------------------------------------------------------------------------------------- */

static const struct opt rm_options[] = {
    {"key", OPT(struct store_args, keys), .arg = "KEY[,KEY...]",
     .help = "chunks to erase, with all chunks that continue them: keys from store ls, or "
             "their first 8 or more digits"},
    {"all", OPT(struct store_args, all), .help = "erase everything"},
    JSON_ROW,
    {0},
};
static const struct opt_cmd rm_cmd = {
    .name = "store rm",
    .summary =
        "Erases saved state permanently: its bytes are overwritten. Conversations that a "
        "server keeps remain; their state is computed again when they continue.",
    .positionals = dir_positionals,
    .options = rm_options,
    .examples = "  hcache store rm /var/lib/hcache --key 02eed3e9264f31aa\n",
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_rm = &rm_cmd;

enum { MIN_KEY_DIGITS = 8 };

static bool key_begins(const struct sha256 *key, const char *digits)
{
    char hex[65];
    sha256_hex(key, hex);
    return strncasecmp(hex, digits, strlen(digits)) == 0;
}

/* Marks the one chunk that the digits of a key name. Refuses digits that name none or several. */
static int mark_key(const struct list *l, const char *digits, bool *marked, struct err *err)
{
    uint64_t n = 0;
    if (strlen(digits) < MIN_KEY_DIGITS)
        return err_set(err, ERR_USAGE, "--key: give at least %d digits, not \"%s\"",
                       MIN_KEY_DIGITS, digits);
    for (uint64_t i = 0; i < l->n; i++)
        if (key_begins(&l->e[i].key, digits)) {
            marked[i] = true;
            n++;
        }
    return n == 1   ? 0
           : n == 0 ? err_set(err, ERR_NOT_FOUND, "no chunk has the key %s", digits)
                    : err_set(err, ERR_USAGE,
                              "--key %s: the keys of %" PRIu64
                              " chunks begin with these digits; give more",
                              digits, n);
}

/* Marks the chunks to remove, and all chunks that continue a marked one. The list is depth first,
 * so a parent's mark is known before its children's. */
static int mark(const struct store_args *a, const struct list *l, bool *marked,
                struct err *err)
{
    int rc = 0;
    if (a->all == (a->keys.n > 0))
        return err_set(err, ERR_USAGE, "give either --key or --all");
    for (int i = 0; i < a->keys.n && rc == 0; i++)
        rc = mark_key(l, a->keys.items[i], marked, err);
    uint64_t *path = xcalloc(l->n + 1, sizeof path[0]), n_path = 0;
    for (uint64_t i = 0; i < l->n && rc == 0; i++) {
        while (n_path > 0 && memcmp(&l->e[path[n_path - 1]].key, &l->e[i].parent,
                                    sizeof l->e[i].parent) != 0)
            n_path--;
        marked[i] |= a->all || (n_path > 0 && marked[path[n_path - 1]]);
        path[n_path++] = i;
    }
    free(path);
    return rc;
}

static void rm_print(const struct store_args *a, const struct store_erased *e)
{
    char size[32];
    bytes_text(e->n_bytes, size);
    if (a->json) {
        json_print(
            json_make("{erased_chunks: %lu, erased_bytes: %lu}", e->n_chunks, e->n_bytes),
            2);
    } else {
        printf("%" PRIu64 " chunk%s erased, %s\n", e->n_chunks, plural(e->n_chunks), size);
    }
}

static int run_rm(const struct store_args *a, struct err *err)
{
    struct session s;
    struct list l = {0};
    struct store_erased e = {0};
    /* Opened first for reading, because opening for writing would create a missing store. */
    int rc = session_open(&s, a, true, err);
    if (rc == 0) {
        session_close(&s);
        rc = session_open(&s, a, false, err);
    }
    if (rc == 0)
        rc = store_each(s.store, list_add, &l, err);
    bool *marked = xcalloc(l.n + 1, sizeof marked[0]);
    struct sha256 *keys = xcalloc(l.n + 1, sizeof keys[0]);
    int n = 0;
    if (rc == 0)
        rc = mark(a, &l, marked, err);
    for (uint64_t i = 0; i < l.n && rc == 0; i++)
        if (marked[i])
            /* parents come first, as store_erase needs them */
            keys[n++] = l.e[i].key;
    if (rc == 0)
        rc = store_erase(s.store, keys, n, &e, err);
    if (rc == 0)
        rm_print(a, &e);
    free(keys);
    free(marked);
    free(l.e);
    session_close(&s);
    return rc;
}

/* --- export and import ------------------------------------------------------------------------ */

/* Options of export and import. */
#define BUNDLE_ROWS                                                                        \
    {"conversations", OPT(struct store_args, conversations), .arg = "FILE",                \
     .help = "file of the kept conversations; conversations.db in the first directory by " \
             "default"},                                                                   \
        {"api-key", OPT(struct store_args, api_key), .arg = "KEY[,KEY...]",                \
         .help =                                                                           \
             "key of the conversation's client; other users of the machine see it in the " \
             "list of processes: prefer the file or the environment"},                     \
        {"api-key-file", OPT(struct store_args, api_key_file), .arg = "FILE",              \
         .help =                                                                           \
             "file with one key per line, as for serve: the conversation may belong to "   \
             "any of these clients"},                                                      \
        JSON_ROW
static const struct opt export_options[] = {
    {"out", OPT(struct store_args, file), .arg = "FILE", .required = true,
     .help = "file to write"},
    {"key", OPT(struct store_args, keys), .arg = "KEY[,KEY...]",
     .help = "chunks to export, with all chunks before and after them: keys from store ls, "
             "or their first 8 or more digits"},
    {"all", OPT(struct store_args, all), .help = "export everything"},
    {"conversation", OPT(struct store_args, conversation), .arg = "ID",
     .help = "a kept conversation (conv_..), or the turns up to a response (resp_..), with "
             "their chunks; not while a server has the conversations open"},
    {"plain", OPT(struct store_args, plain),
     .help = "do not encrypt the file of an encrypted store"},
    BUNDLE_ROWS,
    {0},
};
static const struct opt_cmd export_cmd = {
    .name = "store export",
    .summary = "Writes chunks to one file, which store import reads into another store. A "
               "server may run meanwhile, unless a kept conversation is exported. Pins and "
               "times to live are not exported.",
    .positionals = dir_positionals,
    .options = export_options,
    .examples =
        "  hcache store export /var/lib/hcache --out chat.hcb --key 02eed3e9264f31aa\n",
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_export = &export_cmd;
static const struct opt import_options[] = {
    {"in", OPT(struct store_args, file), .arg = "FILE", .required = true,
     .help = "a file written by store export"},
    BUNDLE_ROWS,
    {0},
};
static const struct opt_cmd import_cmd = {
    .name = "store import",
    .summary = "Reads exported chunks into a store, which no server may have open. Chunks "
               "that the store already has stay. Repeating an interrupted import continues "
               "it. Missing directories are created.",
    .positionals = dir_positionals,
    .options = import_options,
    .examples = "  hcache store import /var/lib/hcache --in chat.hcb\n",
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_import = &import_cmd;

/* Marks all chunks that a marked chunk continues. Parents come first in the list, so the walk
 * begins at its end. */
static void mark_parents(const struct list *l, bool *marked)
{
    for (uint64_t i = l->n; i-- > 0;)
        for (uint64_t p = i; marked[i] && p-- > 0;)
            if (memcmp(&l->e[p].key, &l->e[i].parent, sizeof l->e[p].key) == 0) {
                marked[p] = true;
                break;
            }
}

/* Marks the snapshots behind marked chunks. A snapshot stands behind its chunk in the list. */
static void mark_snapshots(const struct list *l, bool *marked)
{
    for (uint64_t i = 0; i < l->n; i++) {
        const struct store_entry *e = &l->e[i];
        struct sha256 of_states = store_state_key(&e->parent);
        if (marked[i] || memcmp(&of_states, &e->key, sizeof of_states) != 0)
            continue;
        for (uint64_t p = i; p-- > 0 && !marked[i];)
            marked[i] = marked[p] &&
                        memcmp(&l->e[p].key, &e->parent, sizeof e->parent) == 0;
    }
}

/* Prints the counts of an export or import. n_turns -1: the file has no conversation. */
static void bundle_print(const struct store_args *a, const char *what,
                         const struct bundle_counts *n, int n_turns)
{
    char size[32], name[32];
    bytes_text(n->n_bytes, size);
    if (a->json) {
        struct json *j = json_new_object();
        snprintf(name, sizeof name, "%s_chunks", what);
        json_put_int(j, name, (int64_t)n->n_chunks);
        json_extend(j, "{bytes: %lu, known_chunks: %lu, gone_chunks: %lu}", n->n_bytes,
                    n->n_known, n->n_gone);
        if (n_turns >= 0) {
            snprintf(name, sizeof name, "%s_turns", what);
            json_put_int(j, name, n_turns);
        }
        json_print(j, 2);
        return;
    }
    printf("%" PRIu64 " chunk%s %s, %s", n->n_chunks, plural(n->n_chunks), what, size);
    if (n->n_known > 0)
        printf("; %" PRIu64 " already existed", n->n_known);
    if (n->n_gone > 0)
        printf("; %" PRIu64 " were evicted meanwhile or are damaged", n->n_gone);
    if (n_turns >= 0)
        printf("; %d turn%s of a conversation", n_turns, plural((uint64_t)n_turns));
    printf("\n");
}

/* Opens the file of conversations beside the store. */
static int open_kept(const struct store_args *a, const struct session *s,
                     bool must_be_there, struct conversations **out, struct err *err)
{
    char *path = a->conversations != NULL ? xstrdup(a->conversations)
                                          : xasprintf("%s/" CONVERSATIONS_FILE, s->dirs[0]);
    const struct conversations_opts o = {.path = path, .seal = s->seal};
    int rc = must_be_there && access(path, R_OK) != 0
                 ? err_set(err, -errno, "%s: %s", path, strerror(errno))
                 : conversations_open(&o, out, err);
    free(path);
    return rc;
}

/* Sets *out to the tenants that the given API keys identify. */
static int read_tenants(const struct store_args *a, struct tenant_names *out,
                        struct err *err)
{
    struct api_keys k = {0};
    int rc = api_keys_add(&k, &a->api_key, "api-key", a->api_key_file, err);
    tenant_names_make(&k, out);
    api_keys_deinit(&k);
    return rc;
}

/* Marks the chunks of a conversation that the store has. *turns is the text of the conversation,
 * and *n_turns the number of its turns. */
static int mark_conversation(const struct store_args *a, const struct session *s,
                             const struct list *l, bool *marked, char **turns, int *n_turns,
                             struct err *err)
{
    struct conversations *c = NULL;
    struct tenant_names tenants;
    struct sha256 *keys = NULL;
    int n = 0, rc = read_tenants(a, &tenants, err);
    if (rc == 0)
        rc = open_kept(a, s, true, &c, err);
    if (rc == 0)
        rc = turns_export(c, &tenants, a->conversation, turns, &keys, &n, n_turns, err);
    for (uint64_t i = 0; rc == 0 && i < l->n; i++)
        for (int k = 0; k < n && !marked[i]; k++)
            marked[i] = memcmp(&keys[k], &l->e[i].key, sizeof keys[k]) == 0;
    free(keys);
    conversations_close(c);
    tenant_names_deinit(&tenants);
    return rc;
}

static int mark_exported(const struct store_args *a, const struct session *s,
                         const struct list *l, bool *marked, char **turns, int *n_turns,
                         struct err *err)
{
    int rc = a->conversation == NULL || a->all || a->keys.n > 0 ? mark(a, l, marked, err)
                                                                : 0;
    if (rc == 0 && a->conversation != NULL)
        rc = mark_conversation(a, s, l, marked, turns, n_turns, err);
    if (rc == 0 && !a->all) {
        mark_parents(l, marked);
        mark_snapshots(l, marked);
    }
    return rc;
}

static int run_export(const struct store_args *a, struct err *err)
{
    struct session s;
    struct list l = {0};
    struct bundle_counts counts;
    char *turns = NULL;
    int n = 0, n_turns = -1, rc = session_open(&s, a, true, err);
    if (rc == 0)
        rc = store_each(s.store, list_add, &l, err);
    bool *marked = xcalloc(l.n + 1, sizeof marked[0]);
    struct sha256 *keys = xcalloc(l.n + 1, sizeof keys[0]);
    if (rc == 0)
        rc = mark_exported(a, &s, &l, marked, &turns, &n_turns, err);
    for (uint64_t i = 0; i < l.n && rc == 0; i++)
        if (marked[i])
            keys[n++] = l.e[i].key;
    if (rc == 0)
        rc = bundle_write(s.store, a->plain ? NULL : s.seal, keys, n, turns, a->file,
                          &counts, err);
    if (rc == 0)
        bundle_print(a, "exported", &counts, n_turns);
    free(turns);
    free(keys);
    free(marked);
    free(l.e);
    session_close(&s);
    return rc;
}

static int import_turns(const struct store_args *a, const struct session *s,
                        const char *turns, int *n_added, struct err *err)
{
    struct conversations *c = NULL;
    struct tenant_names tenants;
    int rc = read_tenants(a, &tenants, err);
    if (rc == 0)
        rc = open_kept(a, s, false, &c, err);
    if (rc == 0)
        rc = turns_import(c, &tenants, turns, strlen(turns), n_added, err);
    conversations_close(c);
    tenant_names_deinit(&tenants);
    return rc;
}

static int run_import(const struct store_args *a, struct err *err)
{
    struct session s;
    struct bundle_counts counts;
    char *turns = NULL;
    int n_turns = -1;
    /* The file is checked first, because opening would create a missing store. */
    if (access(a->file, R_OK) != 0)
        return err_set(err, -errno, "%s: %s", a->file, strerror(errno));
    int rc = session_open(&s, a, false, err);
    if (rc == 0)
        rc = bundle_read(s.store, s.seal, a->file, &turns, &counts, err);
    if (rc == 0 && turns != NULL)
        rc = import_turns(a, &s, turns, &n_turns, err);
    if (rc == 0)
        bundle_print(a, "imported", &counts, n_turns);
    free(turns);
    session_close(&s);
    return rc;
}

/* --- unpin ------------------------------------------------------------------------------------ */

static const struct opt unpin_options[] = {
    {"key", OPT(struct store_args, keys), .arg = "KEY[,KEY...]",
     .help = "chunks whose pins end: keys from store ls, or their first 8 or more digits"},
    {"all", OPT(struct store_args, all), .help = "end all pins"},
    JSON_ROW,
    {0},
};
static const struct opt_cmd unpin_cmd = {
    .name = "store unpin",
    .summary =
        "Ends pins and guarantees, so that the chunks may be evicted. A chunk stays if a "
        "guaranteed chunk continues it; store ls --chunks --why shows when a pin ends.",
    .positionals = dir_positionals,
    .options = unpin_options,
    .examples = "  hcache store unpin /var/lib/hcache --key 02eed3e9264f31aa\n",
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_unpin = &unpin_cmd;

static int pinned_add(void *arg, const struct store_pinned *p)
{
    struct list *l = arg;
    struct store_entry e = {.key = p->key};
    return list_add(l, &e);
}

static int mark_pins(const struct store_args *a, const struct list *pins, bool *marked,
                     struct err *err)
{
    int rc = 0;
    if (a->all == (a->keys.n > 0))
        return err_set(err, ERR_USAGE, "give either --key or --all");
    for (uint64_t i = 0; i < pins->n; i++)
        marked[i] = a->all;
    for (int i = 0; i < a->keys.n && rc == 0; i++)
        rc = mark_key(pins, a->keys.items[i], marked, err);
    return rc;
}

static int run_unpin(const struct store_args *a, struct err *err)
{
    struct session s;
    struct list pins = {0};
    /* Opened first for reading, because opening for writing would create a missing store. */
    int n = 0, rc = session_open(&s, a, true, err);
    if (rc == 0) {
        session_close(&s);
        rc = session_open(&s, a, false, err);
    }
    if (rc == 0)
        rc = store_each_pin(s.store, pinned_add, &pins);
    bool *marked = xcalloc(pins.n + 1, sizeof marked[0]);
    struct sha256 *keys = xcalloc(pins.n + 1, sizeof keys[0]);
    if (rc == 0)
        rc = mark_pins(a, &pins, marked, err);
    for (uint64_t i = 0; i < pins.n && rc == 0; i++)
        if (marked[i])
            keys[n++] = pins.e[i].key;
    if (rc == 0)
        rc = store_unpin_keys(s.store, keys, n, err);
    if (rc == 0 && a->json) {
        json_print(json_make("{ended_pins: %d}", n), 2);
    } else if (rc == 0) {
        printf("%d pin%s ended\n", n, plural((uint64_t)n));
    }
    free(keys);
    free(marked);
    free(pins.e);
    session_close(&s);
    return rc;
}

/* --- gc --------------------------------------------------------------------------------------- */

static const struct opt gc_options[] = {
    {"idle-ttl", OPT(struct store_args, idle_ttl_s), .arg = "S", .def = "0", .min = 0,
     .max = INT64_C(3153600000),
     .help = "also evict chunks not used for this many seconds; 0: none"},
    {"pack", OPT(struct store_args, pack),
     .help = "also pack state that was stored as it is, as far as there is room"},
    JSON_ROW,
    {0},
};
static const struct opt_cmd gc_cmd = {
    .name = "store gc",
    .summary = "Removes unreachable chunks, cuts unused space off the files, and wipes "
               "free space inside them. Rebuilds the index if it is lost or damaged.",
    .positionals = dir_positionals,
    .options = gc_options,
    .values_bytes = sizeof(struct store_args),
};
const struct opt_cmd *const options_of_store_gc = &gc_cmd;

/* The beginnings of the keys of all stored chunks, sorted. */
struct stored_keys {
    uint8_t (*at)[ANSWERS_KEY_BYTES];
    size_t n, cap;
};

static int stored_keys_add(void *arg, const struct store_entry *e)
{
    struct stored_keys *k = arg;
    if (k->n == k->cap) {
        k->cap = k->cap > 0 ? 2 * k->cap : 256;
        k->at = xrealloc(k->at, k->cap * sizeof *k->at);
    }
    memcpy(k->at[k->n++], e->key.b, ANSWERS_KEY_BYTES);
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, ANSWERS_KEY_BYTES);
}

static bool key_is_stored(void *arg, const uint8_t *key)
{
    const struct stored_keys *k = arg;
    return k->n > 0 && bsearch(key, k->at, k->n, sizeof *k->at, by_bytes) != NULL;
}

/* Forgets the answers that a server remembers in the file `answers`, as far as their state is not
 * stored any more. */
static int gc_answers(const struct session *session, int *n_forgotten, struct err *err)
{
    struct stored_keys k = {0};
    char *path = xasprintf("%s/answers", session->dirs[0]);
    int rc = store_each(session->store, stored_keys_add, &k, err);
    if (k.n > 0)
        qsort(k.at, k.n, sizeof *k.at, by_bytes);
    if (rc == 0)
        rc = answers_keep_stored(path, session->seal, key_is_stored, &k, n_forgotten, err);
    free(k.at);
    free(path);
    return rc;
}

static int pack_all(struct store *s, struct repack_counts *out, struct err *err)
{
    struct repack *r;
    bool more = true;
    int rc = repack_open(s, &r, err);
    if (rc != 0)
        return rc;
    while (rc == 0 && more)
        rc = repack_step(r, &more, err);
    repack_counts(r, out);
    repack_close(r);
    return rc;
}

static void print_packed(const struct repack_counts *n)
{
    char before[32], after[32];
    bytes_text(n->bytes_before, before);
    bytes_text(n->bytes_after, after);
    printf("%" PRIu64 " chunk%s packed, %s instead of %s", n->n_chunks, plural(n->n_chunks),
           after, before);
    if (n->n_left > 0)
        printf("; %" PRIu64 " left as they are: there was no room for both forms, or they "
               "are damaged",
               n->n_left);
    printf("\n");
}

static int run_gc(const struct store_args *a, struct err *err)
{
    int n_forgotten = 0;
    struct session s;
    struct store_stats st;
    struct repack_counts packed = {0};
    uint64_t freed_bytes = 0, n_idle = 0;
    /* Opened first for reading, because opening for writing would create a missing store. */
    int rc = session_open(&s, a, true, err);
    /* Opening for writing rebuilds a damaged index. */
    if (rc == 0 || rc == ERR_CORRUPT) {
        session_close(&s);
        rc = session_open(&s, a, false, err);
    }
    if (rc == 0 && a->idle_ttl_s > 0)
        rc = store_evict_idle(s.store, clock_wall_s() - a->idle_ttl_s, &n_idle, err);
    if (rc == 0 && a->pack)
        rc = pack_all(s.store, &packed, err);
    if (rc == 0)
        rc = store_gc(s.store, &freed_bytes, err);
    if (rc == 0)
        rc = gc_answers(&s, &n_forgotten, err);
    if (rc == 0) {
        char freed[32], files[32];
        store_stats(s.store, &st);
        bytes_text(freed_bytes, freed);
        bytes_text(st.file_bytes, files);
        if (a->json) {
            struct json *j = json_make("{evicted_chunks: %lu}", n_idle);
            if (a->pack) {
                json_extend(j,
                            "{packed_chunks: %lu, left_chunks: %lu, unpacked_bytes: %lu, "
                            "packed_bytes: %lu}",
                            packed.n_chunks, packed.n_left, packed.bytes_before,
                            packed.bytes_after);
            }
            json_extend(j, "{freed_bytes: %lu, file_bytes: %lu, forgotten_answers: %d}",
                        freed_bytes, st.file_bytes, n_forgotten);
            json_print(j, 2);
        } else {
            if (a->idle_ttl_s > 0)
                printf("%llu chunks evicted\n", (unsigned long long)n_idle);
            if (a->pack)
                print_packed(&packed);
            if (n_forgotten > 0)
                printf("%d remembered answers forgotten\n", n_forgotten);
            printf("%s freed; the files have %s now\n", freed, files);
        }
    }
    session_close(&s);
    return rc;
}

/* --- store ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    const struct opt_cmd *cmd;
    int (*run)(const struct store_args *a, struct err *err);
    const char *help;
} verbs[] = {
    {"stat", &stat_cmd, run_stat, "shows how much a store holds, and for which models"},
    {"ls", &ls_cmd, run_ls, "lists the chunks, and which layers are stored"},
    {"verify", &verify_cmd, run_verify, "reads and checks everything"},
    {"rm", &rm_cmd, run_rm, "erases chunks and all that continue them"},
    {"export", &export_cmd, run_export, "writes chunks to a file"},
    {"import", &import_cmd, run_import, "reads such a file into a store"},
    {"unpin", &unpin_cmd, run_unpin, "ends pins and guarantees"},
    {"gc", &gc_cmd, run_gc, "gives space back to the file system"},
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

static void print_usage(FILE *out)
{
    fprintf(out, "usage: hcache store COMMAND DIR[,DIR...] [OPTION]...\n\n");
    for (int i = 0; i < N_VERBS; i++)
        fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].help);
    fprintf(out, "\nhcache store COMMAND --help explains a command.\n");
}

int cmd_store(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    for (int i = 0; i < N_VERBS; i++) {
        if (strcmp(what, verbs[i].name) != 0)
            continue;
        struct store_args a;
        struct opt_parsed *parsed;
        struct err err = {0};
        int code;
        if (!opt_begin(verbs[i].cmd, argc - 1, argv + 1, &a, &parsed, &code))
            return code;
        code = verbs[i].run(&a, &err);
        if (code != 0)
            code = report(verbs[i].cmd, &err);
        opt_end(parsed);
        return code;
    }
    bool help = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    if (!help && *what != '\0')
        fprintf(stderr,
                "hcache store: \"%s\" is none of stat, ls, verify, rm, export, import, "
                "unpin and gc\n",
                what);
    print_usage(help ? stdout : stderr);
    return help ? 0 : 2;
}
