/* kern_attention.h - one tile of attention: up to TILE_QUERIES query vectors over all key blocks
 * that any of them sees, block by block, and head by head inside a block.
 *
 * Strips of up to MM_ROWS queries use the inner loop of the matrix product: scores over d_head,
 * then P.V over the visible keys.  For many queries K and V of a block are converted to f32 once
 * per tile; for few (decode) they are read from the cache and converted in registers.
 *
 * A key that a query does not see never enters the query's arithmetic, not even times zero: the
 * key's slot may hold anything, and adding 0 * v would turn -0 into +0.  If the queries of a strip
 * see different keys of a block, the keys that all see are taken together, and the others row by
 * row, in order. */
#ifndef TENSOR_KERN_ATTENTION_H
#define TENSOR_KERN_ATTENTION_H

#define KEYS     KV_BLOCK_TOKENS
#define KEY_VECS (KEYS / 16)

/* Vectors of keys, or of d_head, that a strip takes at once: enough sums to keep both multipliers
 * busy, but no more than there are registers. */
#define ATTN_PANELS(rows)                                                                  \
    ((rows)*4 <= MM_ROWS * MM_PANELS ? 4 : (rows)*2 <= MM_ROWS * MM_PANELS ? 2 : 1)

struct attn_state {
    const struct attn_tile *t;
    int d_head, d_pad; /* d_pad: d_head rounded up to whole vectors */
    int n_all;         /* query vectors of all heads */
    int n_strips;      /* number of strips of one head */
    float *q;          /* [n_all][d_head] query vectors */
    float *o;          /* [n_all][d_pad] output so far */
    /* [n_all][64] scores, then weights. If a head has several strips, each strip in turn uses the
     * first rows. */
    float *p;
    float *k, *v;  /* one head of the block in f32: [d_head][64], [64][d_pad] */
    float *m, *l;  /* [n_all] running maximum and sum */
    float *shrink; /* [n_all] factor by which the block scales the output so far */
    bool converts; /* K and V are converted into k and v; false: blocks are read in place */
};

/* K [d_head][64] or V [64][step] of one head in one block, converted or not. */
struct kv_part {
    const uint8_t *at;
    enum dtype type;
    int step;
    struct ahead {
        const uint8_t *at; /* parts of n_heads neighbouring heads that will be read soon */
        /* Share `share` of n_heads equal shares is prefetched during this part. */
        int n_heads, share;
        size_t head_bytes;
    } ahead;
};

/* The lines that one pass of a strip prefetches, as in struct operands. */
struct fetch {
    const uint8_t *at;
    size_t line, step;
};

/* The keys of a block that one strip sees: row r sees [lo[r], hi[r]). */
struct strip {
    int idx, first, n; /* queries [first, first + n) */
    float *p;          /* [n][64] scores, then weights */
    int lo[MM_ROWS], hi[MM_ROWS];
    int all_lo, all_hi; /* keys that every row sees */
    bool any;
};

static int round16(int n)
{
    return (n + 15) / 16 * 16;
}

static struct attn_state attn_begin(const struct attn_tile *t)
{
    int d_head = t->kv->d_head;
    struct attn_state s = {.t = t,
                           .d_head = d_head,
                           .d_pad = round16(d_head),
                           .n_all = t->n * t->n_kv_heads,
                           .n_strips = (t->n + MM_ROWS - 1) / MM_ROWS,
                           .converts = t->n > ATTN_CONVERT_QUERIES || d_head % 16 != 0};
    float *at = t->scratch;
    s.k = at, at += KEYS * ATTENTION_MAX_D_HEAD;
    s.v = at, at += KEYS * ATTENTION_MAX_D_HEAD;
    s.q = at, at += s.n_all * d_head;
    s.o = at, at += s.n_all * s.d_pad;
    s.p = at, at += s.n_all * KEYS;
    s.m = at, at += s.n_all;
    s.l = at, at += s.n_all;
    s.shrink = at;
    for (int i = 0; i < s.n_all; i++) {
        memcpy(s.q + i * d_head, t->q[i], (size_t)d_head * sizeof(float));
        s.m[i] = t->sink[i] != NULL ? *t->sink[i] : -INFINITY;
        s.l[i] = t->sink[i] != NULL ? 1.0f : 0.0f;
    }
    memset(s.o, 0, (size_t)(s.n_all * s.d_pad) * sizeof(float));
    return s;
}

static void attn_end(const struct attn_state *s)
{
    for (int i = 0; i < s->n_all; i++) {
        v16 inverse = v_set1(1.0f / s->l[i]);
        for (int d = 0; d < s->d_head; d += 16)
            v_store_upto(s->t->out[i], DTYPE_F32, d, s->d_head - d,
                         v_mul(v_load(s->o + i * s->d_pad + d), inverse));
    }
}

/* --- softmax of rows over one block ---------------------------------------------------------- */

/* Number of rows that are processed at once. Each row is a chain of dependent steps; their
 * latencies overlap with those of the other rows (docs/perf/). */
#define SOFTMAX_ROWS 4

/* Replaces p[0..64) by cap * tanh(p * scale / cap). */
static void softmax_cap(float *p, float scale, float cap)
{
    for (int j = 0; j < KEY_VECS; j++) {
        v16 x = v_mul(v_load(p + 16 * j), v_set1(scale));
        v_store(p + 16 * j, v_mul(v_tanh(v_div(x, v_set1(cap))), v_set1(cap)));
    }
}

/* Multiplies p[lo..hi) by scale and sets the other elements of p to -inf. Returns the largest value
 * per lane, including m. */
INLINE v16 softmax_scale(float *p, int lo, int hi, float scale, float m)
{
    v16 factor = v_set1(scale), minus = v_set1(-INFINITY), top = v_set1(m);
    for (int j = 0; j < KEY_VECS; j++) {
        v16 x = v_mul(v_load(p + 16 * j), factor);
        if (lo > 0 || hi < KEYS) {
            x = v_first(hi - 16 * j, x, minus);
            x = v_first(lo - 16 * j, minus, x);
        }
        v_store(p + 16 * j, x);
        top = v_max(top, x);
    }
    return top;
}

/* Rows of a tile, and the keys of the block that they see. */
struct softmax {
    /* [n_rows][64]: products q.k on entry, weights on return, 0 outside of [lo, hi) */
    float *p;
    const int *lo, *hi;
    float scale, cap;
    float *m, *l, *shrink; /* fields of attn_state, for these rows */
};

INLINE void softmax_rows(const struct softmax *x, int n_rows)
{
    v16 top[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
    float m[SOFTMAX_ROWS], scale = x->cap > 0 ? 1.0f : x->scale;
    for (int r = 0; x->cap > 0 && r < n_rows; r++)
        softmax_cap(x->p + r * KEYS, x->scale, x->cap);
    EACH_ROW top[r] = softmax_scale(x->p + r * KEYS, x->lo[r], x->hi[r], scale, x->m[r]);
    EACH_ROW m[r] = v_max_lane(top[r]);
    EACH_ROW sum[r] = v_zero();
    for (int j = 0; j < KEY_VECS; j++)
        EACH_ROW
        {
            float *p = x->p + r * KEYS + 16 * j;
            v16 e = v_exp(v_sub(v_load(p), v_set1(m[r])));
            v_store(p, e);
            sum[r] = v_add(sum[r], e);
        }
    EACH_ROW
    {
        float shrink = 1.0f; /* exp(0), which v_exp gives exactly: the usual case */
        if (m[r] > x->m[r])
            shrink = v_lane0(v_exp(v_set1(x->m[r] - m[r])));
        x->l[r] = v_lane0(v_fma(v_set1(x->l[r]), v_set1(shrink), v_set1(v_sum(sum[r]))));
        x->m[r] = m[r];
        x->shrink[r] = shrink;
    }
}

static void softmax_one(const struct softmax *x)
{
    softmax_rows(x, 1);
}

static void softmax_some(const struct softmax *x)
{
    softmax_rows(x, SOFTMAX_ROWS);
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

/* --- prefetching ------------------------------------------------------------------------------ */

/* A pair of heads is prefetched line by line, in FETCH_STRETCHES places at once, because memory is
 * read faster from several pages at once (docs/perf/). */
#define FETCH_STRETCHES 4

/* Prefetches bytes [begin, begin + bytes) of a share, in n_steps steps of one line per vector. */
static struct fetch fetch_of(const struct ahead *a, size_t begin, size_t bytes,
                             size_t n_steps, int n_panels)
{
    size_t n = (size_t)n_panels, each = bytes / n_steps / n;
    if (a->n_heads == 1)
        return (struct fetch){a->at + begin, each, each * n};
    size_t share = a->head_bytes * (size_t)a->share;
    return (struct fetch){a->at + (share + begin) / FETCH_STRETCHES,
                          a->head_bytes * (size_t)a->n_heads / FETCH_STRETCHES, each};
}

INLINE void strip_fma(v16 (*sum)[WIDE_MAX], const struct operands *x, const struct ahead *a,
                      enum dtype t, int n, int n_rows, int n_panels)
{
    if (a->n_heads == 1)
        tile_fma(sum, x, t, n, n_rows, n_panels, n_panels);
    else
        tile_fma(sum, x, t, n, n_rows, n_panels, FETCH_STRETCHES);
}

/* --- strips --------------------------------------------------------------------------------- */

/* Returns strip idx of a head; strips have nearly equal heights. */
static struct strip strip_of(const struct attn_state *s, int head, int idx,
                             int32_t block_pos)
{
    int n = s->t->n, first = n * idx / s->n_strips;
    struct strip st = {.idx = idx,
                       .first = head * n + first,
                       .n = n * (idx + 1) / s->n_strips - first,
                       .all_hi = KEYS};
    st.p = s->p + (s->n_strips == 1 ? st.first * KEYS : 0);
    for (int r = 0; r < st.n; r++) {
        int32_t lo = s->t->begin[st.first + r] - block_pos;
        int32_t hi = s->t->end[st.first + r] - block_pos;
        st.lo[r] = MAX(lo, 0);
        st.hi[r] = MIN(hi, KEYS);
        if (st.lo[r] >= st.hi[r])
            st.lo[r] = st.hi[r] = 0;
        else
            st.any = true;
        st.all_lo = MAX(st.lo[r], st.all_lo);
        st.all_hi = MIN(st.hi[r], st.all_hi);
    }
    /* The rows have no keys in common: each row is computed alone. */
    if (st.all_lo >= st.all_hi)
        st.all_lo = st.all_hi = KEYS;
    return st;
}

/* Computes p[r][0..64) = q[r] . k. */
INLINE void scores(const struct attn_state *s, const struct strip *st,
                   const struct kv_part *b, enum dtype t, int n_rows)
{
    const int n_panels = ATTN_PANELS(n_rows);
    size_t strip_bytes = b->ahead.head_bytes / (size_t)s->n_strips;
    for (int j0 = 0; j0 < KEY_VECS; j0 += n_panels) {
        v16 sum[MM_ROWS][WIDE_MAX];
        struct fetch f = fetch_of(
            &b->ahead, strip_bytes * (size_t)(st->idx * KEY_VECS + j0) / KEY_VECS,
            strip_bytes * (size_t)n_panels / KEY_VECS, (size_t)s->d_head / FETCH_STEPS,
            n_panels);
        const struct operands x = {
            .a = s->q + st->first * s->d_head,
            .a_row = s->d_head,
            .a_step = 1,
            .b = b->at + (size_t)(j0 * 16) * dtype_bytes(t),
            .b_step = KEYS,
            .b_panel = 16,
            .fetch = f.at,
            .fetch_line = f.line,
            .fetch_step = f.step,
        };
        EACH_ROW EACH_PANEL sum[r][j] = v_zero();
        strip_fma(sum, &x, &b->ahead, t, s->d_head, n_rows, n_panels);
        EACH_ROW EACH_PANEL v_store(st->p + r * KEYS + (j0 + j) * 16,
                                    v_reorder(sum[r][j], t));
    }
}

/* Some neighbouring rows of a strip, and the keys that they all see. */
struct weighing {
    int strip_idx, row; /* row: the first one, counted in the tile */
    const float *p;     /* weights of the rows, [64] per row */
    const float *shrink;
    int lo, hi;
};

/* Computes o[r][d..) = o[r][d..) * shrink[r] + p[r][lo..hi) . v[..][d..) for n_panels vectors of
 * d_head. */
INLINE void weigh_panels(const struct attn_state *s, const struct weighing *w,
                         const struct kv_part *b, enum dtype t, int d, int n_rows,
                         int n_panels)
{
    v16 sum[MM_ROWS][WIDE_MAX];
    float *o = s->o + w->row * s->d_pad + d;
    size_t strip_bytes = b->ahead.head_bytes / (size_t)s->n_strips;
    size_t vec_bytes = strip_bytes * 16 / (size_t)s->d_pad;
    struct fetch f = fetch_of(
        &b->ahead, strip_bytes * (size_t)w->strip_idx + vec_bytes / 16 * (size_t)d,
        vec_bytes * (size_t)n_panels, KEYS / FETCH_STEPS, n_panels);
    const struct operands x = {
        .a = w->p + w->lo,
        .a_row = KEYS,
        .a_step = 1,
        .b = b->at + (size_t)(w->lo * b->step + d) * dtype_bytes(t),
        .b_step = b->step,
        .b_panel = 16,
        .fetch = f.at,
        .fetch_line = f.line,
        .fetch_step = f.step,
    };
    EACH_ROW EACH_PANEL sum[r][j] = v_reorder(
        v_mul(v_load(o + r * s->d_pad + j * 16), v_set1(w->shrink[r])), t);
    strip_fma(sum, &x, &b->ahead, t, w->hi - w->lo, n_rows, n_panels);
    EACH_ROW EACH_PANEL v_store(o + r * s->d_pad + j * 16, v_reorder(sum[r][j], t));
}

INLINE void weigh(const struct attn_state *s, const struct weighing *w,
                  const struct kv_part *b, enum dtype t, int n_rows)
{
    const int n_panels = ATTN_PANELS(n_rows);
    int d = 0;
    for (; d + 16 * n_panels <= s->d_pad; d += 16 * n_panels)
        weigh_panels(s, w, b, t, d, n_rows, n_panels);
    for (; d < s->d_pad; d += 16)
        weigh_panels(s, w, b, t, d, n_rows, 1);
}

/* A pair of functions per number of rows: inlining them all into one confuses the register
 * allocator. */
#define ATTN(R)                                                                            \
    static void scores_##R(const struct attn_state *s, const struct strip *st,             \
                           const struct kv_part *b)                                        \
    {                                                                                      \
        FOR_DTYPE(b->type, t, scores(s, st, b, (enum dtype)t, R));                         \
    }                                                                                      \
    static void weigh_##R(const struct attn_state *s, const struct weighing *w,            \
                          const struct kv_part *b)                                         \
    {                                                                                      \
        FOR_DTYPE(b->type, t, weigh(s, w, b, (enum dtype)t, R));                           \
    }
EACH_STRIP_HEIGHT(ATTN)
#undef ATTN

#define ATTN(R) {scores_##R, weigh_##R},
static const struct {
    void (*scores)(const struct attn_state *s, const struct strip *st,
                   const struct kv_part *b);
    void (*weigh)(const struct attn_state *s, const struct weighing *w,
                  const struct kv_part *b);
} attn_by_rows[] = {{NULL, NULL}, EACH_STRIP_HEIGHT(ATTN)};
#undef ATTN

/* Processes n rows of the strip from `row` on, keys [lo, hi). */
static void weigh_rows(const struct attn_state *s, const struct strip *st,
                       const struct kv_part *b, int row, int n, const float *shrink, int lo,
                       int hi)
{
    struct weighing w = {st->idx, st->first + row, st->p + row * KEYS, shrink, lo, hi};
    if (lo < hi)
        attn_by_rows[n].weigh(s, &w, b);
}

static int clamp(int x, int lo, int hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Weighs V for rows that see different keys of the block: the keys before the common part, the
 * common part, the keys after it. */
static void weigh_uneven(const struct attn_state *s, const struct strip *st,
                         const struct kv_part *b)
{
    float shrink[MM_ROWS];
    for (int r = 0; r < st->n; r++) {
        int end = clamp(st->all_lo, st->lo[r], st->hi[r]);
        float before = s->shrink[st->first + r];
        weigh_rows(s, st, b, r, 1, &before, st->lo[r], end);
        shrink[r] = end > st->lo[r] ? 1.0f : before;
    }
    weigh_rows(s, st, b, 0, st->n, shrink, st->all_lo, st->all_hi);
    for (int r = 0; r < st->n; r++)
        weigh_rows(s, st, b, r, 1, &(float){1.0f}, clamp(st->all_hi, st->lo[r], st->hi[r]),
                   st->hi[r]);
}

/* Returns whether each of the rows [row, row + SOFTMAX_ROWS) of the strip sees a key of the block.
 */
static bool some_see(const struct strip *st, int row)
{
    bool all = row + SOFTMAX_ROWS <= st->n;
    for (int r = row; all && r < row + SOFTMAX_ROWS; r++)
        all = st->lo[r] < st->hi[r];
    return all;
}

/* Describes the rows of a strip from `row` on. */
static struct softmax softmax_of(const struct attn_state *s, const struct strip *st,
                                 int row)
{
    int i = st->first + row;
    return (struct softmax){.p = st->p + row * KEYS,
                            .lo = st->lo + row,
                            .hi = st->hi + row,
                            .scale = s->t->scale,
                            .cap = s->t->cap,
                            .m = s->m + i,
                            .l = s->l + i,
                            .shrink = s->shrink + i};
}

static void strip_softmax(const struct attn_state *s, const struct strip *st)
{
    for (int r = 0; r < st->n;) {
        struct softmax x = softmax_of(s, st, r);
        if (some_see(st, r)) {
            softmax_some(&x);
            r += SOFTMAX_ROWS;
        } else {
            if (*x.lo < *x.hi)
                softmax_one(&x);
            else
                *x.shrink = 1.0f;
            r++;
        }
    }
}

static void strip_weigh(const struct attn_state *s, const struct strip *st,
                        const struct kv_part *b)
{
    bool even = true;
    for (int r = 0; r < st->n; r++)
        even = even && st->lo[r] == st->all_lo && st->hi[r] == st->all_hi;
    if (even)
        weigh_rows(s, st, b, 0, st->n, s->shrink + st->first, st->all_lo, st->all_hi);
    else
        weigh_uneven(s, st, b);
}

/* --- the tile ------------------------------------------------------------------------------- */

static size_t head_bytes_of(const struct kv_layer *kv)
{
    return (size_t)kv->d_head * KEYS * dtype_bytes(kv->dtype);
}

/* Returns where K of the tile's head `head` begins in a block. */
static const uint8_t *block_k(const struct attn_tile *t, int32_t block, int head)
{
    const struct kv_layer *kv = t->kv;
    return kv->blocks + (size_t)t->table[block] * kv->block_stride +
           (size_t)(t->kv_head + head) * head_bytes_of(kv);
}

/* Returns where V of the tile's head `head` begins in a block. */
static const uint8_t *block_v(const struct attn_tile *t, int32_t block, int head)
{
    return block_k(t, block, head) + (size_t)t->kv->n_kv * head_bytes_of(t->kv);
}

/* --- heads one after another ----------------------------------------------------------------- */

/* Describes a head's K or V in a block. `next` is the part that will be read next and is prefetched
 * meanwhile; `converted` is the f32 copy of this part. */
static struct kv_part part_of(const struct attn_state *s, const uint8_t *at,
                              const uint8_t *next, const float *converted)
{
    struct ahead ahead = {next, 1, 0, head_bytes_of(s->t->kv)};
    if (s->converts)
        return (struct kv_part){(const uint8_t *)converted, DTYPE_F32, s->d_pad, ahead};
    return (struct kv_part){at, s->t->kv->dtype, s->d_head, ahead};
}

static void head_attend(const struct attn_state *s, int32_t block, int head,
                        int32_t next_block)
{
    const struct attn_tile *t = s->t;
    int next = head + 1 < t->n_kv_heads ? head + 1 : 0;
    int32_t then = next > 0 ? block : next_block;
    const uint8_t *k_at = block_k(t, block, head), *v_at = block_v(t, block, head);
    struct kv_part k = part_of(s, k_at, block_k(t, then, next), s->k);
    struct kv_part v = part_of(s, v_at, block_v(t, then, next), s->v);
    if (s->converts)
        block_convert(s, k_at, v_at);
    for (int i = 0; i < s->n_strips; i++) {
        struct strip st = strip_of(s, head, i, block * KEYS);
        if (!st.any)
            continue;
        attn_by_rows[st.n].scores(s, &st, &k);
        strip_softmax(s, &st);
        strip_weigh(s, &st, &v);
    }
}

/* --- pairs of heads, for a row or a few (decode) ---------------------------------------------- */

/* Returns whether the tile takes heads in pairs. A tile that has all heads of its blocks, and needs
 * several passes over K, is faster head by head (docs/perf/). */
static bool takes_pairs(const struct attn_state *s)
{
    const struct attn_tile *t = s->t;
    return t->n_kv_heads % 2 == 0 && t->n <= MM_ROWS && !s->converts &&
           (ATTN_PANELS(t->n) == 4 || t->n_kv_heads < t->kv->n_kv);
}

/* Describes K of a head. While it is read, half of the next pair's K is prefetched; after the last
 * pair, V of the first pair. */
static struct kv_part k_of_pair(const struct attn_state *s, int32_t block, int head)
{
    const struct attn_tile *t = s->t;
    int next = head / 2 * 2 + 2;
    struct ahead ahead = {next < t->n_kv_heads ? block_k(t, block, next)
                                               : block_v(t, block, 0),
                          2, head % 2, head_bytes_of(t->kv)};
    return (struct kv_part){block_k(t, block, head), t->kv->dtype, s->d_head, ahead};
}

/* Describes V of a head, as k_of_pair does K. After the last pair, K of the next block is
 * prefetched. */
static struct kv_part v_of_pair(const struct attn_state *s, int32_t block, int head,
                                int32_t next_block)
{
    const struct attn_tile *t = s->t;
    int next = head / 2 * 2 + 2;
    struct ahead ahead = {next < t->n_kv_heads ? block_v(t, block, next)
                                               : block_k(t, next_block, 0),
                          2, head % 2, head_bytes_of(t->kv)};
    return (struct kv_part){block_v(t, block, head), t->kv->dtype, s->d_head, ahead};
}

/* Memory would be idle while softmaxes are computed.  So softmax number idx prefetches some of the
 * first lines of the pair `v`, a few in each of its stretches: the pair that is prefetched while V
 * of the first pair is read.  (If this function is not
 * inlined, gcc 12 takes it for one without effects and drops the call.) */
#define SOFTMAX_LINES 4
INLINE void softmax_ask(const struct ahead *v, int idx)
{
    size_t stretch = v->head_bytes * (size_t)v->n_heads / 4;
    const uint8_t *at = v->at + idx * SOFTMAX_LINES * 64;
    for (size_t i = 0; i < 4 * SOFTMAX_LINES; i++)
        __builtin_prefetch(at + i % 4 * stretch + i / 4 * 64, 0, 2);
}

/* Computes the softmax of all rows of the tile, which see the same keys because each sequence has
 * one row. */
static void heads_softmax(const struct attn_state *s, int32_t block, int32_t next_block)
{
    struct kv_part v = v_of_pair(s, block, 0, next_block);
    struct strip st = strip_of(s, 0, 0, block * KEYS);
    int lo[SOFTMAX_ROWS], hi[SOFTMAX_ROWS];
    for (int r = 0; r < SOFTMAX_ROWS; r++) {
        lo[r] = st.lo[0];
        hi[r] = st.hi[0];
    }
    struct softmax x = softmax_of(s, &st, 0);
    x.lo = lo;
    x.hi = hi;
    for (int left = s->n_all, n, idx = 0; left > 0; left -= n) {
        softmax_ask(&v.ahead, idx++);
        n = left < SOFTMAX_ROWS ? 1 : SOFTMAX_ROWS;
        if (n > 1)
            softmax_some(&x);
        else
            softmax_one(&x);
        x.p += n * KEYS;
        x.m += n;
        x.l += n;
        x.shrink += n;
    }
}

/* Computes the scores of all heads, then all weights, then all outputs.  So K of the tile's heads
 * is one stretch of memory and V another, and the latencies of the softmaxes overlap. */
static void pairs_attend(const struct attn_state *s, int32_t block, int32_t next_block)
{
    int n_heads = s->t->n_kv_heads;
    for (int head = 0; head < n_heads; head++) {
        struct strip st = strip_of(s, head, 0, block * KEYS);
        struct kv_part k = k_of_pair(s, block, head);
        attn_by_rows[st.n].scores(s, &st, &k);
    }
    heads_softmax(s, block, next_block);
    for (int head = 0; head < n_heads; head++) {
        struct strip st = strip_of(s, head, 0, block * KEYS);
        struct kv_part v = v_of_pair(s, block, head, next_block);
        strip_weigh(s, &st, &v);
    }
}

static void attention(const struct attn_tile *t)
{
    struct attn_state s = attn_begin(t);
    int32_t begin = t->begin[0], end = t->end[0];
    for (int i = 1; i < t->n; i++) {
        begin = MIN(t->begin[i], begin);
        end = MAX(t->end[i], end);
    }
    int32_t last = (end - 1) / KEYS;
    for (int32_t i = begin / KEYS; i <= last; i++) {
        int32_t next = i < last ? i + 1 : i;
        if (takes_pairs(&s))
            pairs_attend(&s, i, next);
        else
            for (int head = 0; head < t->n_kv_heads; head++)
                head_attend(&s, i, head, next);
    }
    attn_end(&s);
}

#endif
