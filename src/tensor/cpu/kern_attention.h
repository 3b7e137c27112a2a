/* kern_attention.h - one tile of attention: up to TILE_QUERIES query vectors of one kv head, over all
 * key blocks that any of them sees.
 *
 * K and V of a block are converted to f32 once per tile, then used by strips of MM_ROWS queries with
 * the micro-kernel of the matrix product: scores over d_head, then P.V over the visible keys.  With
 * one or few queries (decode) they are converted in registers on the way instead.
 *
 * A key that a query does not see never enters its arithmetic, not even times zero: its slot may
 * hold anything, and 0 * v would turn -0 into +0.  Inside a strip whose queries see different keys of
 * a block, those that all see go through the micro-kernel, the others row by row, in order. */
#ifndef TENSOR_KERN_ATTENTION_H
#define TENSOR_KERN_ATTENTION_H

#define KEYS     KV_BLOCK_TOKENS
#define KEY_VECS (KEYS / 16)

struct attn_state {
    const struct attn_tile *t;
    int d_head, d_pad;              /* d_pad: d_head rounded up to whole vectors */
    float *q;                       /* strips of MM_ROWS: [n_strips][d_head][MM_ROWS] */
    float *o;                       /* [n][d_pad] */
    float *p;                       /* [MM_ROWS][64]: scores, then weights */
    float *k, *v;                   /* the block in f32: [d_head][64], [64][d_pad] */
    float *m, *l;                   /* [n] running maximum and sum */
    const uint8_t *next_k, *next_v; /* of the block behind this one, to be fetched ahead */
};

/* Visible keys of the block of one strip: row r sees [lo[r], hi[r]). */
struct strip {
    int first, n; /* queries [first, first + n) */
    int lo[MM_ROWS], hi[MM_ROWS];
    int all_lo, all_hi; /* seen by every row */
    bool any;
    float shrink[MM_ROWS];
};

static int round16(int n)
{
    return (n + 15) / 16 * 16;
}

static struct attn_state attn_begin(const struct attn_tile *t)
{
    struct attn_state s = {
        .t = t, .d_head = t->kv->d_head, .d_pad = round16(t->kv->d_head)};
    float *at = t->scratch;
    s.k = at, at += KEYS * MAX_D_HEAD;
    s.v = at, at += KEYS * MAX_D_HEAD;
    s.q = at, at += TILE_QUERIES * MAX_D_HEAD;
    s.o = at, at += t->n * s.d_pad;
    s.p = at, at += MM_ROWS * KEYS;
    s.m = at, at += t->n;
    s.l = at;
    for (int i = 0; i < t->n; i++) {
        float *strip = s.q + (i / MM_ROWS) * MM_ROWS * s.d_head;
        for (int d = 0; d < s.d_head; d++)
            strip[d * MM_ROWS + i % MM_ROWS] = t->q[i][d];
        s.m[i] = -INFINITY;
        s.l[i] = 0;
    }
    memset(s.o, 0, (size_t)(t->n * s.d_pad) * sizeof(float));
    return s;
}

static void attn_end(const struct attn_state *s)
{
    for (int i = 0; i < s->t->n; i++) {
        v16 inverse = v_set1(1.0f / s->l[i]);
        for (int d = 0; d < s->d_head; d += 16)
            v_store_upto(s->t->out[i], DTYPE_F32, d, s->d_head - d,
                         v_mul(v_load(s->o + i * s->d_pad + d), inverse));
    }
}

/* --- softmax of one row over one block ------------------------------------------------------ */

/* p[lo..hi) holds products q.k on entry, weights on return, the others 0. Returns what the old
 * output shrinks by. */
static float softmax_block(float *p, int lo, int hi, float scale, float *m, float *l)
{
    v16 s[KEY_VECS], factor = v_set1(scale), minus = v_set1(-INFINITY);
    v16 top = v_set1(*m);
    for (int j = 0; j < KEY_VECS; j++) {
        s[j] = v_mul(v_load(p + 16 * j), factor);
        if (lo > 0 || hi < KEYS) {
            s[j] = v_first(hi - 16 * j, s[j], minus);
            s[j] = v_first(lo - 16 * j, minus, s[j]);
        }
        top = v_max(top, s[j]);
    }
    float m_new = v_max_lane(top);
    v16 sum = v_zero();
    for (int j = 0; j < KEY_VECS; j++) {
        s[j] = v_exp(v_sub(s[j], v_set1(m_new)));
        v_store(p + 16 * j, s[j]);
        sum = v_add(sum, s[j]);
    }
    float lanes[16], shrink = 1.0f; /* exp(0), which v_exp gives exactly: the usual case */
    if (m_new > *m) {
        v_store(lanes, v_exp(v_set1(*m - m_new)));
        shrink = lanes[0];
    }
    v_store(lanes, v_fma(v_set1(*l), v_set1(shrink), v_set1(v_sum(sum))));
    *l = lanes[0];
    *m = m_new;
    return shrink;
}

/* --- the block in f32 ----------------------------------------------------------------------- */

INLINE void block_convert_t(const struct attn_state *s, const uint8_t *k, const uint8_t *v,
                            enum dtype t)
{
    for (int i = 0; i < s->d_head * KEYS; i += 16)
        v_store(s->k + i, v_load_t(k, t, i));
    if (s->d_head == s->d_pad) {
        for (int i = 0; i < s->d_head * KEYS; i += 16)
            v_store(s->v + i, v_load_t(v, t, i));
        return;
    }
    for (int j = 0; j < KEYS; j++)
        for (int d = 0; d < s->d_head; d += 16)
            v_store(s->v + j * s->d_pad + d,
                    v_load_upto(v, t, (int64_t)j * s->d_head + d, s->d_head - d));
}

static void block_convert(const struct attn_state *s, const uint8_t *k, const uint8_t *v)
{
    FOR_DTYPE(s->t->kv->dtype, t, block_convert_t(s, k, v, (enum dtype)t));
}

/* --- strips --------------------------------------------------------------------------------- */

static struct strip strip_of(const struct attn_tile *t, int first, int32_t block_pos)
{
    struct strip st = {.first = first, .all_hi = KEYS};
    st.n = t->n - first < MM_ROWS ? t->n - first : MM_ROWS;
    for (int r = 0; r < st.n; r++) {
        int32_t lo = t->begin[first + r] - block_pos, hi = t->end[first + r] - block_pos;
        st.lo[r] = lo > 0 ? lo : 0;
        st.hi[r] = hi < KEYS ? hi : KEYS;
        if (st.lo[r] >= st.hi[r])
            st.lo[r] = st.hi[r] = 0;
        else
            st.any = true;
        st.all_lo = st.lo[r] > st.all_lo ? st.lo[r] : st.all_lo;
        st.all_hi = st.hi[r] < st.all_hi ? st.hi[r] : st.all_hi;
    }
    if (st.all_lo >= st.all_hi) /* nothing in common: every row by itself */
        st.all_lo = st.all_hi = KEYS;
    return st;
}

/* p[r][0..64) = q[r] . k for a whole strip (absent rows are computed from stale q, and unused). */
static void strip_scores(const struct attn_state *s, const struct strip *st)
{
    const int n_rows = MM_ROWS, n_panels = MM_PANELS;
    const float *q = s->q + (int64_t)st->first * s->d_head;
    for (int j0 = 0; j0 < KEYS; j0 += GROUP_COLS) {
        v16 sum[MM_ROWS][MM_PANELS];
        EACH_ROW EACH_PANEL sum[r][j] = v_zero();
        tile_fma(sum, n_rows, n_panels, q, 1, MM_ROWS, s->k + j0, KEYS, s->d_head);
        EACH_ROW EACH_PANEL v_store(s->p + r * KEYS + j0 + j * PANEL, sum[r][j]);
    }
}

/* o[r] = o[r] * shrink[r] + p[r][lo..hi) . v, for n_rows rows and n_panels vectors of d_head. */
INLINE void weigh_panels(float *o, int d_pad, const float *p, const float *v,
                         const float *shrink, int lo, int hi, int n_rows, int n_panels)
{
    v16 sum[MM_ROWS][MM_PANELS];
    EACH_ROW EACH_PANEL sum[r][j] = v_mul(v_load(o + r * d_pad + j * PANEL),
                                          v_set1(shrink[r]));
    tile_fma(sum, n_rows, n_panels, p + lo, KEYS, 1, v + lo * d_pad, d_pad, hi - lo);
    EACH_ROW EACH_PANEL v_store(o + r * d_pad + j * PANEL, sum[r][j]);
}

INLINE void weigh_rows(const struct attn_state *s, int row0, const float *p,
                       const float *shrink, int lo, int hi, int n_rows)
{
    float *o = s->o + row0 * s->d_pad;
    int d = 0;
    for (; d + GROUP_COLS <= s->d_pad; d += GROUP_COLS)
        weigh_panels(o + d, s->d_pad, p, s->v + d, shrink, lo, hi, n_rows, MM_PANELS);
    for (; d < s->d_pad; d += PANEL)
        weigh_panels(o + d, s->d_pad, p, s->v + d, shrink, lo, hi, n_rows, 1);
}

static void weigh_one(const struct attn_state *s, int row, const float *p, float shrink,
                      int lo, int hi)
{
    if (lo < hi)
        weigh_rows(s, row, p, &shrink, lo, hi, 1);
}

static void weigh_all(const struct attn_state *s, const struct strip *st)
{
    weigh_rows(s, st->first, s->p, st->shrink, st->all_lo, st->all_hi, MM_ROWS);
}

static int clamp(int x, int lo, int hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Rows of a strip that is not full, or that sees the block unevenly: before, common part, after. */
static void weigh_uneven(const struct attn_state *s, const struct strip *st)
{
    bool common = st->n == MM_ROWS && st->all_lo < st->all_hi;
    float shrink[MM_ROWS];
    for (int r = 0; r < st->n; r++) {
        int end = common ? clamp(st->all_lo, st->lo[r], st->hi[r]) : st->hi[r];
        weigh_one(s, st->first + r, s->p + r * KEYS, st->shrink[r], st->lo[r], end);
        shrink[r] = end > st->lo[r] ? 1.0f : st->shrink[r];
    }
    if (!common)
        return;
    weigh_rows(s, st->first, s->p, shrink, st->all_lo, st->all_hi, MM_ROWS);
    for (int r = 0; r < st->n; r++)
        weigh_one(s, st->first + r, s->p + r * KEYS, 1.0f, st->all_hi, st->hi[r]);
}

static void strip_attend(const struct attn_state *s, struct strip *st)
{
    strip_scores(s, st);
    bool even = st->n == MM_ROWS;
    for (int r = 0; r < st->n; r++) {
        int i = st->first + r;
        st->shrink[r] = 1.0f;
        if (st->lo[r] < st->hi[r])
            st->shrink[r] = softmax_block(s->p + r * KEYS, st->lo[r], st->hi[r],
                                          s->t->scale, &s->m[i], &s->l[i]);
        even = even && st->lo[r] == st->all_lo && st->hi[r] == st->all_hi;
    }
    if (even)
        weigh_all(s, st);
    else
        weigh_uneven(s, st);
}

/* --- few queries: straight from the cache --------------------------------------------------- */

/* A head's K or V in a block is a stretch of 8 to 16 KiB: too short for the hardware to see it coming
 * (9 of 16 GB/s without this). */
INLINE void fetch_ahead(const uint8_t *p, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + at + i);
}

INLINE void direct_scores(const struct attn_state *s, const uint8_t *k, enum dtype t,
                          int n_rows)
{
    v16 sum[ATTN_DIRECT_ROWS][KEY_VECS];
    const int n_panels = KEY_VECS;
    EACH_ROW EACH_PANEL sum[r][j] = v_zero();
    for (int d = 0; d < s->d_head; d++) {
        v16 kv[KEY_VECS];
        fetch_ahead(s->next_k, (size_t)d * KEYS * dtype_bytes(t), KEYS * dtype_bytes(t));
        EACH_PANEL kv[j] = v_load_t(k, t, d * KEYS + 16 * j);
        EACH_ROW
        {
            v16 q = v_set1(s->q[d * MM_ROWS + r]);
            EACH_PANEL sum[r][j] = v_fma(q, kv[j], sum[r][j]);
        }
    }
    EACH_ROW EACH_PANEL v_store(s->p + r * KEYS + 16 * j, sum[r][j]);
}

INLINE void direct_weigh(const struct attn_state *s, const uint8_t *v, enum dtype t,
                         const float *shrink, int d, int lo, int hi, int n_rows,
                         int n_panels)
{
    v16 sum[ATTN_DIRECT_ROWS][KEY_VECS];
    EACH_ROW EACH_PANEL sum[r][j] = v_mul(v_load(s->o + r * s->d_pad + d + 16 * j),
                                          v_set1(shrink[r]));
    for (int i = lo; i < hi; i++) {
        v16 vv[KEY_VECS];
        fetch_ahead(s->next_v, (size_t)(i * s->d_head + d) * dtype_bytes(t),
                    (size_t)n_panels * 16 * dtype_bytes(t));
        EACH_PANEL vv[j] = v_load_t(v, t, i * s->d_head + d + 16 * j);
        EACH_ROW
        {
            v16 p = v_set1(s->p[r * KEYS + i]);
            EACH_PANEL sum[r][j] = v_fma(p, vv[j], sum[r][j]);
        }
    }
    EACH_ROW EACH_PANEL v_store(s->o + r * s->d_pad + d + 16 * j, sum[r][j]);
}

/* All rows see the same keys: they are heads of one token. */
INLINE void direct_block(const struct attn_state *s, const uint8_t *k, const uint8_t *v,
                         enum dtype t, int lo, int hi, int n_rows)
{
    float shrink[ATTN_DIRECT_ROWS];
    direct_scores(s, k, t, n_rows);
    for (int r = 0; r < n_rows; r++)
        shrink[r] = softmax_block(s->p + r * KEYS, lo, hi, s->t->scale, &s->m[r], &s->l[r]);
    int d = 0;
    for (; d + KEYS <= s->d_head; d += KEYS)
        direct_weigh(s, v, t, shrink, d, lo, hi, n_rows, KEY_VECS);
    for (; d < s->d_head; d += 16)
        direct_weigh(s, v, t, shrink, d, lo, hi, n_rows, 1);
}

#define ATTN_DIRECT(R)                                                                     \
    static void direct_block_##R(const struct attn_state *s, const uint8_t *k,             \
                                 const uint8_t *v, int lo, int hi)                         \
    {                                                                                      \
        FOR_DTYPE(s->t->kv->dtype, t, direct_block(s, k, v, (enum dtype)t, lo, hi, R));    \
    }
ATTN_DIRECT(1)
#if ATTN_DIRECT_ROWS >= 4
ATTN_DIRECT(2)
ATTN_DIRECT(3)
ATTN_DIRECT(4)
#endif

static void (*const direct_block_by_rows[])(const struct attn_state *s, const uint8_t *k,
                                            const uint8_t *v, int lo, int hi) = {
    NULL,           direct_block_1,
#if ATTN_DIRECT_ROWS >= 4
    direct_block_2, direct_block_3, direct_block_4,
#endif
};

/* --- the tile ------------------------------------------------------------------------------- */

static bool tile_is_direct(const struct attn_tile *t)
{
    bool same_keys = true;
    for (int i = 1; i < t->n; i++)
        same_keys = same_keys && t->begin[i] == t->begin[0] && t->end[i] == t->end[0];
    return same_keys && t->n <= ATTN_DIRECT_ROWS && t->kv->d_head % 16 == 0;
}

static const uint8_t *block_k(const struct attn_tile *t, int32_t block)
{
    const struct kv_layer *kv = t->kv;
    size_t head_bytes = (size_t)kv->d_head * KEYS * dtype_bytes(kv->dtype);
    return kv->blocks + (size_t)t->table[block] * kv->block_stride +
           (size_t)t->kv_head * head_bytes;
}

static void tile_block(struct attn_state *s, int32_t block, int32_t last, bool direct)
{
    const struct kv_layer *kv = s->t->kv;
    size_t k_bytes = (size_t)kv->n_kv * (size_t)kv->d_head * KEYS * dtype_bytes(kv->dtype);
    const uint8_t *k = block_k(s->t, block), *v = k + k_bytes;
    if (direct) {
        s->next_k = block < last ? block_k(s->t, block + 1) : k;
        s->next_v = s->next_k + k_bytes;
        struct strip st = strip_of(s->t, 0, block * KEYS);
        direct_block_by_rows[s->t->n](s, k, v, st.lo[0], st.hi[0]);
        return;
    }
    block_convert(s, k, v);
    for (int i = 0; i < s->t->n; i += MM_ROWS) {
        struct strip st = strip_of(s->t, i, block * KEYS);
        if (st.any)
            strip_attend(s, &st);
    }
}

static void attention(const struct attn_tile *t)
{
    struct attn_state s = attn_begin(t);
    int32_t begin = t->begin[0], end = t->end[0];
    for (int i = 1; i < t->n; i++) {
        begin = t->begin[i] < begin ? t->begin[i] : begin;
        end = t->end[i] > end ? t->end[i] : end;
    }
    bool direct = tile_is_direct(t);
    int32_t last = (end - 1) / KEYS;
    for (int32_t b = begin / KEYS; b <= last; b++)
        tile_block(&s, b, last, direct);
    attn_end(&s);
}

#endif
