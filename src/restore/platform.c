/* platform.c - costs, validation and text of a platform; see platform.h.
 *
 * One table describes every key: its name, its field, and which numbers are impossible. Parsing,
 * formatting and validation all walk it, so they cannot disagree. */
#include "restore/platform.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"
#include "restore/correction.h"

enum key_type { KEY_TEXT, KEY_INT, KEY_NUMBER };

/* Least allowed value. POSITIVE also excludes 0, a SIGNED number lies within
 * +-CORRECTION_LOG2_MAX, and a FRACTION between 0 and 1. */
#define POSITIVE (-1.0)
#define SIGNED   (-2.0)
#define FRACTION (-3.0)

struct key {
    const char *name;
    enum key_type type;
    size_t at, size;
    double least;
};

#define AT(member) offsetof(struct platform, member), sizeof(((struct platform *)0)->member)

static const struct key keys[] = {
    {"machine", KEY_TEXT, AT(machine), 0},
    {"model", KEY_TEXT, AT(model), 0},
    {"commit", KEY_TEXT, AT(commit), 0},
    {"date", KEY_TEXT, AT(date), 0},
    {"n_layers", KEY_INT, AT(n_layers), 1},
    {"h_bytes", KEY_NUMBER, AT(h_bytes), POSITIVE},
    {"kv_bytes", KEY_NUMBER, AT(kv_bytes), POSITIVE},
    {"n_ranks", KEY_INT, AT(n_ranks), 1},
    {"n_stages", KEY_INT, AT(n_stages), 1},
    {"c_tok_a_s", KEY_NUMBER, AT(c_tok.a_s), 0},
    {"c_tok_b_s", KEY_NUMBER, AT(c_tok.b_s), POSITIVE},
    {"c_tok_c_s", KEY_NUMBER, AT(c_tok.c_s), 0},
    {"c_h_a_s", KEY_NUMBER, AT(c_h.a_s), 0},
    {"c_h_b_s", KEY_NUMBER, AT(c_h.b_s), POSITIVE},
    {"c_h_c_s", KEY_NUMBER, AT(c_h.c_s), 0},
    {"c_kv_a_s", KEY_NUMBER, AT(c_kv.a_s), 0},
    {"c_kv_b_s", KEY_NUMBER, AT(c_kv.b_s), 0},
    {"c_kv_c_s", KEY_NUMBER, AT(c_kv.c_s), 0},
    {"c_tok_r2", KEY_NUMBER, AT(c_tok_r2), FRACTION},
    {"c_h_r2", KEY_NUMBER, AT(c_h_r2), FRACTION},
    {"c_kv_r2", KEY_NUMBER, AT(c_kv_r2), FRACTION},
    {"piece_tokens", KEY_INT, AT(piece_tokens), 0},
    {"h_piece_tokens", KEY_INT, AT(h_piece_tokens), 0},
    {"gemm_correction_log2", KEY_NUMBER, AT(gemm_correction.log2), SIGNED},
    {"gemm_n_observed", KEY_INT, AT(gemm_correction.n_observed), 0},
    {"kv_correction_log2", KEY_NUMBER, AT(kv_correction.log2), SIGNED},
    {"kv_n_observed", KEY_INT, AT(kv_correction.n_observed), 0},
    {"cpu_share", KEY_NUMBER, AT(cpu_share), FRACTION},
    {"unpack_bytes_per_s", KEY_NUMBER, AT(unpack_bytes_per_s), 0},
    {"embed_s", KEY_NUMBER, AT(embed_s), 0},
    {"head_s", KEY_NUMBER, AT(head_s), 0},
    {"tile_tokens", KEY_INT, AT(tile_tokens), 1},
    {"io_overlap", KEY_NUMBER, AT(io_overlap), 1},
    {"comp_overlap", KEY_NUMBER, AT(comp_overlap), 1},
    {"n_tiers", KEY_INT, AT(n_tiers), 0},
};

/* Keys of tier i: "tier0_name" and so on. */
static const struct key tier_keys[] = {
    {"name", KEY_TEXT, AT(tier[0].name), 0},
    {"latency_s", KEY_NUMBER, AT(tier[0].latency_s), 0},
    {"bytes_per_s", KEY_NUMBER, AT(tier[0].bytes_per_s), POSITIVE},
    {"up_bytes_per_s", KEY_NUMBER, AT(tier[0].up_bytes_per_s), 0},
    {"gather_bytes_per_s", KEY_NUMBER, AT(tier[0].gather_bytes_per_s), 0},
    {"request_s", KEY_NUMBER, AT(tier[0].request_s), 0},
    {"r2", KEY_NUMBER, AT(tier[0].r2), FRACTION},
    {"correction_log2", KEY_NUMBER, AT(tier[0].correction.log2), SIGNED},
    {"n_observed", KEY_INT, AT(tier[0].correction.n_observed), 0},
    {"spread_log2", KEY_NUMBER, AT(tier[0].correction.spread_log2), 0},
};

enum {
    N_KEYS = sizeof keys / sizeof *keys,
    N_TIER_KEYS = sizeof tier_keys / sizeof *tier_keys
};

/* Finds the key of index i over all keys, tiers included: its full name and its field. */
static bool key_at(int i, struct key *out, char *name, size_t cap)
{
    if (i < N_KEYS) {
        *out = keys[i];
        snprintf(name, cap, "%s", keys[i].name);
        return true;
    }
    int t = (i - N_KEYS) / N_TIER_KEYS;
    if (t >= PLATFORM_TIERS_MAX)
        return false;
    *out = tier_keys[(i - N_KEYS) % N_TIER_KEYS];
    snprintf(name, cap, "tier%d_%s", t, out->name);
    out->at += (size_t)t * sizeof(struct platform_tier);
    return true;
}

static int n_keys_of(const struct platform *p)
{
    return N_KEYS + N_TIER_KEYS * p->n_tiers;
}

static const char *text_of(const struct platform *p, const struct key *k)
{
    return (const char *)p + k->at;
}

static double number_of(const struct platform *p, const struct key *k)
{
    const char *at = (const char *)p + k->at;
    if (k->type == KEY_NUMBER)
        return *(const double *)(const void *)at;
    return *(const int *)(const void *)at;
}

void platform_init(struct platform *p)
{
    memset(p, 0, sizeof *p);
    p->io_overlap = p->comp_overlap = 1;
    p->tile_tokens = 1;
    p->n_ranks = p->n_stages = 1;
    p->split_s = PLATFORM_SPLIT_S;
}

/* ---- validation ---- */

static int check_number(const char *name, double x, double least, struct err *e)
{
    if (isnan(x))
        return err_set(e, ERR_FORMAT, "platform: %s is not a number", name);
    if (isinf(x))
        return err_set(e, ERR_FORMAT, "platform: %s is infinite", name);
    if (least == POSITIVE && x == 0)
        return err_set(e, ERR_FORMAT, "platform: %s is zero", name);
    if (least == SIGNED) {
        if (fabs(x) <= CORRECTION_LOG2_MAX)
            return 0;
        return err_set(e, ERR_FORMAT, "platform: %s is %g; it must lie within +-%g", name,
                       x, CORRECTION_LOG2_MAX);
    }
    if (x < 0)
        return err_set(e, ERR_FORMAT, "platform: %s is negative (%g)", name, x);
    if (least == FRACTION && x > 1)
        return err_set(e, ERR_FORMAT, "platform: %s is %g; it must lie within 0 and 1",
                       name, x);
    if (x < least)
        return err_set(e, ERR_FORMAT, "platform: %s is %g, at least %g is needed", name, x,
                       least);
    return 0;
}

static int check_text(const char *name, const char *text, size_t size, struct err *e)
{
    size_t n = strnlen(text, size);
    if (n == size)
        return err_set(e, ERR_FORMAT, "platform: %s is longer than %zu bytes", name,
                       size - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return err_set(e, ERR_FORMAT, "platform: %s contains a control character",
                           name);
    if (n > 0 && (text[0] == ' ' || text[n - 1] == ' '))
        return err_set(e, ERR_FORMAT, "platform: %s begins or ends with a space", name);
    return 0;
}

int platform_validate(const struct platform *p, struct err *e)
{
    if (p->n_tiers < 0 || p->n_tiers > PLATFORM_TIERS_MAX)
        return err_set(e, ERR_FORMAT, "platform: n_tiers is %d, 0 to %d are possible",
                       p->n_tiers, PLATFORM_TIERS_MAX);
    if (p->n_stages > PLATFORM_MAX_STAGES || (p->n_layers > 0 && p->n_stages > p->n_layers))
        return err_set(e, ERR_FORMAT,
                       "platform: n_stages is %d: at most %d, and one for each of the %d "
                       "layers, are possible",
                       p->n_stages, PLATFORM_MAX_STAGES, p->n_layers);
    struct key k;
    char name[40];
    for (int i = 0; i < n_keys_of(p) && key_at(i, &k, name, sizeof name); i++) {
        int rc = k.type == KEY_TEXT ? check_text(name, text_of(p, &k), k.size, e)
                                    : check_number(name, number_of(p, &k), k.least, e);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- text ---- */

struct line {
    const char *key, *value;
    size_t n_key, n_value;
};

static void trim(const char **s, size_t *n)
{
    while (*n > 0 && (**s == ' ' || **s == '\t'))
        (*s)++, (*n)--;
    while (*n > 0 && ((*s)[*n - 1] == ' ' || (*s)[*n - 1] == '\t' || (*s)[*n - 1] == '\r'))
        (*n)--;
}

/* Splits "key = value". Returns false if there is no '='. Blank and comment lines give n_key 0. */
static bool split_line(const char *s, size_t n, struct line *out)
{
    *out = (struct line){0};
    trim(&s, &n);
    if (n == 0 || *s == '#')
        return true;
    const char *eq = memchr(s, '=', n);
    if (eq == NULL)
        return false;
    out->key = s;
    out->n_key = (size_t)(eq - s);
    out->value = eq + 1;
    out->n_value = n - out->n_key - 1;
    trim(&out->key, &out->n_key);
    trim(&out->value, &out->n_value);
    return out->n_key > 0;
}

static int find_key(const struct line *l, struct key *k, char *name, size_t cap)
{
    for (int i = 0; key_at(i, k, name, cap); i++)
        if (strlen(name) == l->n_key && memcmp(name, l->key, l->n_key) == 0)
            return i;
    return -1;
}

static int set_number(struct platform *p, const struct key *k, const char *name,
                      const struct line *l, int line_no, struct err *e)
{
    char text[64], *end;
    if (l->n_value == 0 || l->n_value >= sizeof text)
        return err_set(e, ERR_FORMAT, "platform: line %d: %s needs a number", line_no,
                       name);
    memcpy(text, l->value, l->n_value);
    text[l->n_value] = 0;
    double x = strtod(text, &end);
    if (*end != 0)
        return err_set(e, ERR_FORMAT, "platform: line %d: %s = '%s' is not a number",
                       line_no, name, text);
    int rc = check_number(name, x, k->least, e);
    if (rc != 0)
        return rc;
    char *at = (char *)p + k->at;
    if (k->type == KEY_NUMBER) {
        *(double *)(void *)at = x;
        return 0;
    }
    if (x != floor(x) || x > 1e9)
        return err_set(e, ERR_FORMAT, "platform: line %d: %s = %s is not a count", line_no,
                       name, text);
    *(int *)(void *)at = (int)x;
    return 0;
}

static int set_text(struct platform *p, const struct key *k, const char *name,
                    const struct line *l, int line_no, struct err *e)
{
    if (l->n_value >= k->size || memchr(l->value, 0, l->n_value) != NULL)
        return err_set(e, ERR_FORMAT,
                       "platform: line %d: %s has more than %zu bytes or a zero byte",
                       line_no, name, k->size - 1);
    char *at = (char *)p + k->at;
    memcpy(at, l->value, l->n_value);
    at[l->n_value] = 0;
    return 0;
}

static int parse_line(const char *s, size_t n, int line_no, struct platform *p, bool *seen,
                      struct err *e)
{
    struct line l;
    struct key k;
    char name[40];
    if (!split_line(s, n, &l))
        return err_set(e, ERR_FORMAT, "platform: line %d is not `key = value`", line_no);
    if (l.n_key == 0)
        return 0;
    int i = find_key(&l, &k, name, sizeof name);
    if (i < 0)
        return err_set(e, ERR_FORMAT, "platform: line %d: unknown key '%.*s'", line_no,
                       (int)MIN(l.n_key, 40), l.key);
    if (seen[i])
        return err_set(e, ERR_FORMAT, "platform: line %d: %s a second time", line_no, name);
    seen[i] = true;
    return k.type == KEY_TEXT ? set_text(p, &k, name, &l, line_no, e)
                              : set_number(p, &k, name, &l, line_no, e);
}

int platform_parse(const char *text, size_t n, struct platform *out, struct err *e)
{
    bool seen[N_KEYS + N_TIER_KEYS * PLATFORM_TIERS_MAX] = {false};
    platform_init(out);
    int line_no = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl != NULL ? (size_t)(nl - (text + at)) : n - at;
        int rc = parse_line(text + at, len, ++line_no, out, seen, e);
        if (rc != 0)
            return rc;
        at += len + 1;
    }
    struct key k;
    char name[40];
    for (int i = 0; key_at(i, &k, name, sizeof name); i++) {
        bool wanted = i < N_KEYS || i < n_keys_of(out);
        if (wanted && !seen[i])
            return err_set(e, ERR_FORMAT, "platform: %s is missing", name);
        if (!wanted && seen[i])
            return err_set(e, ERR_FORMAT, "platform: %s, but n_tiers is %d", name,
                           out->n_tiers);
    }
    return platform_validate(out, e);
}

int platform_format(const struct platform *p, char *out, size_t cap)
{
    CHECK(p->n_tiers <= PLATFORM_TIERS_MAX);
    int n = 0;
    struct key k;
    char name[40];
    for (int i = 0; i < n_keys_of(p) && key_at(i, &k, name, sizeof name); i++) {
        char *at = (size_t)n < cap ? out + n : NULL;
        size_t room = (size_t)n < cap ? cap - (size_t)n : 0;
        if (k.type == KEY_TEXT)
            n += snprintf(at, room, "%s = %s\n", name, text_of(p, &k));
        else /* 17 digits reproduce the double */
            n += snprintf(at, room, "%s = %.17g\n", name, number_of(p, &k));
    }
    return n;
}

int platform_check(const struct platform *p, const char *machine, const char *model,
                   struct err *e)
{
    if (strcmp(p->machine, machine) != 0)
        return err_set(e, ERR_MISMATCH, "profile of another machine: '%s', this is '%s'",
                       p->machine, machine);
    if (strcmp(p->model, model) != 0)
        return err_set(e, ERR_MISMATCH, "profile of another model: '%s', this is '%s'",
                       p->model, model);
    return 0;
}

/* ---- costs ---- */

double cost_curve_at(const struct cost_curve *c, double n)
{
    return n > 0 ? c->a_s + n * (c->b_s + n * c->c_s) : 0;
}

double platform_correction_factor(const struct platform_correction *c)
{
    return exp2(c->log2);
}

/* A restore is balanced if both lanes work for at least this share of it. */
#define BALANCED 0.6

bool platform_is_balanced(double io_s, double compute_s, double restore_s)
{
    return fmin(io_s, compute_s) >= BALANCED * restore_s;
}

double platform_pause_factor(const struct platform *p, bool balanced)
{
    return exp2(fmin(1, fmax(0, p->pause_correction[balanced].log2)));
}

void platform_slow_compute(struct platform *p, double times)
{
    p->gemm_correction.log2 += log2(times);
    p->kv_correction.log2 += log2(times);
}

/* Returns the time of a curve for n rows. The linear part is GEMM and runs in whole tiles;
 * attention, the quadratic part, does not. */
static double curve_tiled(const struct platform *p, const struct cost_curve *c, int64_t n,
                          int piece)
{
    if (n <= 0)
        return 0;
    int64_t tile = MAX(p->tile_tokens, 1);
    int64_t n_pieces = piece > 0 ? (n + piece - 1) / piece : 1;
    double m = (double)((n + tile - 1) / tile * tile);
    return (double)n_pieces * c->a_s + c->b_s * m + c->c_s * (double)n * (double)n;
}

/* Returns the time of n rows through a layer. A piece waits for the layer's weights if they take
 * longer to arrive than it takes to compute. */
static double with_weights(const struct platform *p, int64_t n, double compute_s)
{
    int64_t n_pieces = p->piece_tokens > 0 ? (n + p->piece_tokens - 1) / p->piece_tokens
                                           : 1;
    double weights_s = n > 0 ? (double)n_pieces * p->weights_s : 0;
    return compute_s > weights_s ? compute_s : weights_s;
}

static double gemm_factor(const struct platform *p)
{
    return platform_correction_factor(&p->gemm_correction);
}

double platform_tok_s(const struct platform *p, int64_t n)
{
    return with_weights(p, n,
                        curve_tiled(p, &p->c_tok, n, p->piece_tokens) * gemm_factor(p));
}

double platform_h_s(const struct platform *p, int64_t n)
{
    return curve_tiled(p, &p->c_h, n, p->h_piece_tokens) * gemm_factor(p);
}

double platform_kv_s(const struct platform *p, int64_t n)
{
    return cost_curve_at(&p->c_kv, (double)n) *
           platform_correction_factor(&p->kv_correction);
}

double platform_prefill_s(const struct platform *p, int64_t n_past, int64_t n_new)
{
    /* n_new queries, each over the past and half of the new: c * ((past + new)^2 - past^2). */
    double past = (double)n_past, fresh = (double)n_new;
    double compute_s = (curve_tiled(p, &p->c_tok, n_new, p->piece_tokens) +
                        2 * p->c_tok.c_s * past * fresh) *
                       gemm_factor(p);
    return with_weights(p, n_new, compute_s);
}

double platform_ends_s(const struct platform *p, int64_t n_embedded)
{
    return (p->embed_s * (double)n_embedded + p->head_s) * gemm_factor(p);
}

static double bytes_of(const struct platform *p, enum platform_record kind)
{
    return kind == RECORD_HIDDEN ? p->h_bytes : p->kv_bytes;
}

double platform_stored_read_s(const struct platform *p, int tier, int64_t n_tokens,
                              enum platform_record kind, double share)
{
    CHECK(tier >= 0 && tier < p->n_tiers);
    const struct platform_tier *t = &p->tier[tier];
    double n_records = (double)n_tokens / PLATFORM_CHUNK_TOKENS;
    return (n_records * t->request_s +
            (double)n_tokens * bytes_of(p, kind) * share / t->bytes_per_s) *
           platform_correction_factor(&t->correction);
}

double platform_read_s(const struct platform *p, int tier, int64_t n_tokens,
                       enum platform_record kind)
{
    return platform_stored_read_s(p, tier, n_tokens, kind, 1);
}

double platform_unpack_s(const struct platform *p, double n_bytes)
{
    double s = p->unpack_bytes_per_s > 0 ? n_bytes / p->unpack_bytes_per_s : 0;
    return s * platform_correction_factor(&p->kv_correction);
}

double platform_unseal_s(const struct platform *p, double n_bytes)
{
    double s = p->unseal_bytes_per_s > 0 ? n_bytes / p->unseal_bytes_per_s : 0;
    return s * platform_correction_factor(&p->kv_correction);
}

/* Returns the time to copy one byte from the host to the device, or 0 if memory is unified. Each
 * rank copies K and V of its own heads. Every rank needs whole hidden states: each rank copies a
 * share, and then the ranks gather the shares. */
static double up_byte_s(const struct platform *p, int tier, enum platform_record kind)
{
    double up = p->tier[tier].up_bytes_per_s, gather = p->tier[tier].gather_bytes_per_s;
    return (up > 0 ? 1 / up : 0) + (kind == RECORD_HIDDEN && gather > 0 ? 1 / gather : 0);
}

double platform_up_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind)
{
    CHECK(tier >= 0 && tier < p->n_tiers);
    return (double)n_tokens * bytes_of(p, kind) * up_byte_s(p, tier, kind);
}

double platform_io_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind)
{
    return fmax(platform_read_s(p, tier, n_tokens, kind),
                platform_up_s(p, tier, n_tokens, kind));
}

bool platform_tier_in_place(const struct platform_tier *t)
{
    return strcmp(t->name, "dram") == 0 && t->up_bytes_per_s == 0;
}

double platform_io_bytes_per_s(const struct platform *p, int tier)
{
    CHECK(tier >= 0 && tier < p->n_tiers);
    return 1 / fmax(1 / p->tier[tier].bytes_per_s, up_byte_s(p, tier, RECORD_HIDDEN));
}

bool platform_is_store_bound(const struct platform *p, int tier)
{
    CHECK(tier >= 0 && tier < p->n_tiers);
    return up_byte_s(p, tier, RECORD_HIDDEN) <= 1 / p->tier[tier].bytes_per_s;
}

static void slow_curve(struct cost_curve *c, double factor)
{
    c->a_s *= factor;
    c->b_s *= factor;
    c->c_s *= factor;
}

struct platform platform_shared(const struct platform *p, double io_share,
                                double compute_share)
{
    CHECK(io_share > 0 && io_share <= 1 && compute_share > 0 && compute_share <= 1);
    struct platform q = *p;
    slow_curve(&q.c_tok, 1 / compute_share);
    slow_curve(&q.c_h, 1 / compute_share);
    slow_curve(&q.c_kv, 1 / compute_share);
    q.embed_s /= compute_share;
    q.head_s /= compute_share;
    for (int i = 0; i < q.n_tiers; i++) {
        q.tier[i].bytes_per_s *= io_share;
        q.tier[i].up_bytes_per_s *= io_share;
        q.tier[i].gather_bytes_per_s *= io_share;
        q.tier[i].request_s /= io_share;
    }
    return q;
}

void platform_throttle(struct platform *p, int tier, double bytes_per_s)
{
    CHECK(tier >= 0 && (tier < p->n_tiers || tier == 0) && bytes_per_s >= 0);
    struct platform_tier *t = &p->tier[tier];
    bool is_measured = p->n_layers > 0,
         is_slower = p->n_tiers > 0 && t->bytes_per_s <= bytes_per_s;
    if (bytes_per_s == 0 || !is_measured || is_slower)
        return;
    if (p->n_tiers == 0) {
        p->n_tiers = 1;
        *t = (struct platform_tier){.name = "throttled", .bytes_per_s = bytes_per_s};
        return;
    }
    double share = bytes_per_s / t->bytes_per_s;
    p->io_overlap = 1 + (p->io_overlap - 1) * share;
    p->comp_overlap = 1 + (p->comp_overlap - 1) * share;
    *t = (struct platform_tier){.name = "throttled",
                                .bytes_per_s = bytes_per_s,
                                .up_bytes_per_s = t->up_bytes_per_s,
                                .gather_bytes_per_s = t->gather_bytes_per_s};
}

double platform_balance_bytes_per_s(const struct platform *p, int64_t n)
{
    return (double)n * p->h_bytes / platform_h_s(p, n);
}

void platform_price(const struct platform *p, struct placement_price *out)
{
    double first_s = p->c_tok.b_s + p->c_tok.c_s * PLATFORM_CHUNK_TOKENS;
    *out = (struct placement_price){
        .token_s = p->n_layers * platform_correction_factor(&p->gemm_correction) * first_s,
        .chunk_bytes = PLATFORM_CHUNK_TOKENS * p->kv_bytes * p->n_layers};
    if (p->n_tiers > 0 && out->chunk_bytes > 0)
        out->read_byte_s = platform_io_s(p, 0, PLATFORM_CHUNK_TOKENS, RECORD_KV) *
                           p->n_layers / out->chunk_bytes;
}
