/* save_kinds.c - see save_kinds.h. */
#include "restore/save_kinds.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "restore/beside.h"
#include "save/saver.h"

/* First length; lengths double from here, since plans change slowly with length. */
enum { FIRST_TOKENS = 512 };

/* Adds the records that the best plan reads for this many tokens. */
static int add_wanted(const struct save_kinds_from *from, int64_t n_tokens, uint8_t *kinds,
                      struct err *err)
{
    struct plan_layer layer[PLAN_MAX_LAYERS];
    struct plan_request req = {0};
    struct plan plan;
    plan_request_from_platform(from->platform, 0, n_tokens, 0, layer, NULL, &req);
    req.mode = PLAN_AUTO;
    int rc = plan_make(&req, &plan, err);
    for (int l = 0; rc == 0 && l < from->n_layers; l++) {
        if (plan.method[l] == 'H')
            kinds[l] |= PLAN_HAS_H;
        if (plan.method[l] == 'K')
            kinds[l] |= PLAN_HAS_KV;
    }
    return rc;
}

static int choose_auto(const struct save_kinds_from *from, uint8_t *kinds, struct err *err)
{
    bool dominated = from->h_bytes >= from->kv_bytes;
    int rc = 0;
    if (from->platform == NULL || from->platform->n_tiers == 0) {
        memset(kinds, PLAN_HAS_KV | (dominated ? 0 : PLAN_HAS_H), (size_t)from->n_layers);
        return 0;
    }
    for (int64_t n = FIRST_TOKENS; rc == 0; n *= 2) {
        rc = add_wanted(from, MIN(n, from->max_tokens), kinds, err);
        if (n >= from->max_tokens)
            break;
    }
    return rc;
}

static int from_letters(const char *text, int n_layers, uint8_t *kinds, struct err *err)
{
    static const char letters[] = "-HKB";
    static const uint8_t of_letter[] = {0, PLAN_HAS_H, PLAN_HAS_KV,
                                        PLAN_HAS_H | PLAN_HAS_KV};
    if ((int)strlen(text) != n_layers)
        return err_set(
            err, ERR_USAGE,
            "--save '%s': must be auto, hidden, kv, both, none, or a letter for each of "
            "the %d layers (H, K, B, -)",
            text, n_layers);
    for (int l = 0; l < n_layers; l++) {
        const char *at = strchr(letters, text[l]);
        if (at == NULL)
            return err_set(err, ERR_USAGE, "--save '%s': '%c' is none of H, K, B, -", text,
                           text[l]);
        kinds[l] = of_letter[at - letters];
    }
    return 0;
}

/* Reads `text` as save_kinds_choose does, as if no layer were recurrent. */
static int choose(const char *text, const struct save_kinds_from *from, uint8_t *kinds,
                  struct err *err)
{
    static const struct {
        const char *name;
        uint8_t kinds;
    } named[] = {{"none", 0},
                 {"hidden", PLAN_HAS_H},
                 {"kv", PLAN_HAS_KV},
                 {"both", PLAN_HAS_H | PLAN_HAS_KV}};
    memset(kinds, 0, (size_t)from->n_layers);
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (strcmp(text, named[i].name) == 0) {
            memset(kinds, named[i].kinds, (size_t)from->n_layers);
            return 0;
        }
    if (strcmp(text, "auto") == 0)
        return choose_auto(from, kinds, err);
    return from_letters(text, from->n_layers, kinds, err);
}

int save_kinds_choose(const char *text, const struct save_kinds_from *from, uint8_t *kinds,
                      struct err *err)
{
    int rc = choose(text, from, kinds, err);
    bool has_inputs = strcmp(text, "kv") !=
                      0; /* else their states come from snapshots alone */
    for (int l = 0; l < from->n_layers; l++)
        if (layer_set_has(&from->recurrent, l) && kinds[l] != 0)
            kinds[l] = has_inputs ? PLAN_HAS_H : 0;
    return rc;
}

int save_kinds_add_beside(const char *text, const struct save_kinds_from *from,
                          uint8_t *kinds, struct err *err)
{
    uint8_t beside[PLAN_MAX_LAYERS];
    struct save_kinds_from slowed = *from;
    struct platform p;
    if (from->platform != NULL) {
        p = *from->platform;
        platform_slow_compute(&p, 1 / BESIDE_RESTORE_SHARE);
        slowed.platform = &p;
    }
    int rc = save_kinds_choose(text, &slowed, beside, err);
    for (int l = 0; rc == 0 && l < from->n_layers; l++)
        kinds[l] |= beside[l];
    return rc;
}

/* Returns the time of the fastest single method for one layer, restored from the disk, and whether
 * that method reads. Mixtures are left out: to plan them takes a millisecond a request. */
static double layer_s(const struct platform *p, uint8_t saved, int64_t n_tokens,
                      bool *reads)
{
    struct plan_layer l;
    plan_layers_uniform(p, 0, n_tokens, 1, &l);
    double h_s = fmax(fmax(l.io_h_s, l.up_h_s), l.comp_h_s);
    double kv_s = fmax(fmax(l.io_kv_s, l.up_kv_s), l.comp_kv_s);
    double read_s = saved == PLAN_HAS_KV ? kv_s
                                         : fmin(h_s, saved == PLAN_HAS_H ? h_s : kv_s);
    *reads = read_s < l.comp_tok_s;
    return fmin(read_s, l.comp_tok_s);
}

bool save_kinds_pack(const struct save_kinds_from *from)
{
    const struct platform *p = from->platform;
    if (p == NULL || p->n_tiers == 0 || p->unpack_bytes_per_s == 0)
        return false;
    struct platform packed = *p;
    double won_s = 0;
    bool reads, unused;
    packed.packed_share = from->pack_share;
    for (int64_t n = FIRST_TOKENS;; n *= 2) {
        int64_t n_tokens = MIN(n, from->max_tokens);
        double plain_s = layer_s(p, from->saved, n_tokens, &reads);
        double packed_s = layer_s(&packed, from->saved, n_tokens, &unused);
        if (packed_s > SAVE_PACK_SLOWER * plain_s)
            return false;
        won_s += plain_s - packed_s;
        if (from->has_copies && reads)
            won_s -= platform_unpack_s(p, (double)n_tokens * p->kv_bytes);
        if (n >= from->max_tokens)
            return !from->has_copies || won_s >= 0;
    }
}

int save_kinds_usable(const struct save_kinds_found *f, const uint8_t *wanted, int n_layers)
{
    bool is_continued = f->n_chunks > 0 && f->has_partial && wanted != NULL;
    bool lacks = is_continued && !save_kinds_suffice(wanted, f->stored, n_layers);
    return lacks ? f->n_chunks - 1 : f->n_chunks;
}
