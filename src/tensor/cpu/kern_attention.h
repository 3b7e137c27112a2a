/* kern_attention.h - one tile of attention: up to TILE_QUERIES query vectors over all key blocks
 * that any of them sees, block by block, and head by head inside a block.
 *
 * Strips of up to MM_ROWS queries compute scores over d_head, then P.V over the visible keys.  For
 * many queries K and V of a block are converted once per tile; for few (decode) they are read from
 * the cache and converted in registers.
 *
 * bf16 state is multiplied in pairs of neighbours in d_head, or of neighbouring keys (ops.h).  If
 * VEC_PAIRS is defined, one instruction does that, and q, the weights and converted K and V are
 * pairs of bf16 in 32 bits.  Otherwise they are f32, and a pair is two fused steps.
 *
 * A key that a query does not see never enters the query's arithmetic, because the key's slot may
 * hold anything.  If the queries of a strip see different keys of a block, the pairs of keys that
 * all see are taken together, and the others row by row, in order. */
#ifndef TENSOR_KERN_ATTENTION_H
#define TENSOR_KERN_ATTENTION_H

#define KEYS     KV_BLOCK_TOKENS
#define KEY_VECS (KEYS / 16)

/* Vectors of d_head that a strip of one or two rows takes at once, so that V is one stream. */
#define ATTN_WIDE (MM_ROWS * MM_PANELS < 24 ? 4 : 8)
/* Vectors of keys, or of d_head, that other strips take at once: enough sums to keep both
 * multipliers busy, but no more than there are registers. */
#define ATTN_PANELS(rows)                                                                  \
    ((rows)*4 <= MM_ROWS * MM_PANELS ? 4 : (rows)*2 <= MM_ROWS * MM_PANELS ? 2 : 1)

#ifdef VEC_PAIRS
#define PER_SLOT 2 /* numbers of q, of weights, and rows of converted K and V, in 32 bits */
#define FOR_STATE(type, t, ...)                                                            \
    do {                                                                                   \
        enum { t = DTYPE_BF16 };                                                           \
        __VA_ARGS__;                                                                       \
    } while (0)
#else
#define PER_SLOT  1
#define FOR_STATE FOR_DTYPE
#endif

/* The type of converted K and V if the state is bf16; other state is converted to f32. */
enum { PAIRS = DTYPE_BF16 + 1 };

struct attn_state {
    const struct attn_tile *t;
    int d_head, d_pad; /* d_pad: d_head rounded up to whole vectors */
    int per_slot;      /* PER_SLOT; 1 if the state is not bf16 */
    int n_all;         /* query vectors of all heads */
    int n_strips;      /* number of strips of one head */
    float *q;          /* strips [d_head / per_slot][n] of query vectors, times the scale */
    float *o;          /* [n_all][d_pad] output so far */
    /* [n_all][64] scores, then weights. If a head has several strips, each strip in turn uses the
     * first rows. */
    float *p;
    /* one head of the block, converted: [d_head / per_slot][64], [64 / per_slot][d_pad] */
    float *k, *v;
    int32_t all_begin, all_end; /* keys that every query sees */
    float cap;
    float *m;      /* [n_all] running maximum */
    float *l;      /* [n_all][16] running sum, in lanes */
    bool converts; /* K and V are converted into k and v; false: blocks are read in place */
};

/* K [d_head][64] or V [64][step] of one head in one block, converted or not. */
struct kv_part {
    const uint8_t *at;
    int type; /* enum dtype, or PAIRS */
    int step;
    /* The part that is read next, of head_bytes, and is prefetched meanwhile; NULL: none. */
    const uint8_t *next;
    size_t head_bytes;
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
    int all_lo, all_hi; /* pairs of keys that every row sees */
    bool any, whole;    /* some key is seen by a row; all keys are seen by all rows */
};

static int round16(int n)
{
    return (n + 15) / 16 * 16;
}

/* Writes a query times `scale`, in the form that scores take, as a row of a strip of n. */
static void query_put(const struct attn_state *s, float *to, int n, const float *q,
                      float scale)
{
    float slots[ATTENTION_MAX_D_HEAD];
    bool rounds = s->t->kv->dtype == DTYPE_BF16;
    for (int d = 0; d < s->d_head; d += 16) {
        v16 x = v_mul(v_load_upto(q, DTYPE_F32, d, s->d_head - d), v_set1(scale));
        if (s->per_slot > 1)
            v_store_upto(slots, DTYPE_BF16, d, s->d_head - d, x);
        else
            v_store_upto(slots, DTYPE_F32, d, s->d_head - d,
                         rounds ? v_flush(v_round_bf16(x)) : x);
    }
    for (int i = 0; i < s->d_head / s->per_slot; i++)
        to[i * n] = slots[i];
}

static struct attn_state attn_begin(const struct attn_tile *t)
{
    int d_head = t->kv->d_head;
    bool rounds = t->kv->dtype == DTYPE_BF16;
    float unit = rounds ? LOG2_E : 1.0f;
    struct attn_state s = {.t = t,
                           .d_head = d_head,
                           .d_pad = round16(d_head),
                           .per_slot = rounds ? PER_SLOT : 1,
                           .n_all = t->n * t->n_kv_heads,
                           .n_strips = (t->n + MM_ROWS - 1) / MM_ROWS,
                           .all_end = INT32_MAX,
                           .cap = t->cap * unit,
                           .converts = t->n > ATTN_CONVERT_QUERIES || d_head % 16 != 0};
    for (int i = 0; i < t->n; i++) {
        s.all_begin = MAX(t->begin[i], s.all_begin);
        s.all_end = MIN(t->end[i], s.all_end);
    }
    float *at = t->scratch;
    s.k = at, at += KEYS * ATTENTION_MAX_D_HEAD;
    s.v = at, at += KEYS * ATTENTION_MAX_D_HEAD;
    s.q = at, at += s.n_all * d_head;
    s.o = at, at += s.n_all * s.d_pad;
    s.p = at, at += s.n_all * KEYS;
    s.l = at, at += s.n_all * 16;
    s.m = at;
    memset(s.o, 0, (size_t)(s.n_all * s.d_pad) * sizeof(float));
    memset(s.l, 0, (size_t)(s.n_all * 16) * sizeof(float));
    for (int i = 0, first = 0, n = 0; i < s.n_all; i++) {
        if (i == first + n) { /* the first row of a strip, see strip_of */
            int in_head = i % t->n, idx = (in_head * s.n_strips + t->n - 1) / t->n;
            first = i;
            n = t->n * (idx + 1) / s.n_strips - in_head;
        }
        query_put(&s, s.q + first * d_head / s.per_slot + (i - first), n, t->q[i],
                  t->scale * unit);
        s.m[i] = t->sink[i] != NULL ? *t->sink[i] * unit : -INFINITY;
        s.l[i * 16] = t->sink[i] != NULL ? 1.0f : 0.0f;
    }
    return s;
}

static void attn_end(const struct attn_state *s)
{
    for (int i = 0; i < s->n_all; i++) {
        v16 inverse = v_set1(1.0f / v_sum(v_load(s->l + i * 16)));
        for (int d = 0; d < s->d_head; d += 16)
            v_store_upto(s->t->out[i], DTYPE_F32, d, s->d_head - d,
                         v_mul(v_load(s->o + i * s->d_pad + d), inverse));
    }
}

/* --- softmax of rows over one block ---------------------------------------------------------- */

/* Number of rows that are processed at once, because the steps of one row wait for each other
 * (docs/perf/). In portable C the 16 lanes are several registers. */
#define SOFTMAX_ROWS (MM_ROWS > 4 ? 4 : 1)

/* Rows of a tile, and the keys of the block that they see. */
struct softmax {
    /* [n_rows][64]: scores on entry, weights on return, 0 outside of [lo, hi) */
    float *p;
    const int *lo, *hi;
    float cap;
    float *m, *l, *o; /* fields of attn_state, for these rows */
    int d_pad;
    bool rounds; /* the state is bf16 */
};

/* Replaces p[0..64) by cap * tanh(p / cap). */
static void softmax_cap(float *p, float cap)
{
    for (int j = 0; j < KEYS; j += 16)
        v_store(p + j, v_mul(v_tanh(v_div(v_load(p + j), v_set1(cap))), v_set1(cap)));
}

/* Sets the elements of p outside [lo, hi) to -inf. Returns the largest value per lane, including m.
 */
INLINE v16 softmax_top(float *p, int lo, int hi, float m)
{
    v16 minus = v_set1(-INFINITY), top = v_set1(m);
    for (int j = 0; j < KEYS; j += 16) {
        v16 x = v_load(p + j);
        if (lo > 0 || hi < KEYS) {
            x = v_first(hi - j, x, minus);
            x = v_first(lo - j, minus, x);
            v_store(p + j, x);
        }
        top = v_max(top, x);
    }
    return top;
}

INLINE v16 softmax_exp(v16 x, bool rounds)
{
    return rounds ? v_exp2_rough(x) : v_exp(x);
}

/* Raises the maximum of row r to m, and scales its sum and its output so far. */
static __attribute__((noinline)) void softmax_raise(const struct softmax *x, int r, float m)
{
    v16 shrink = softmax_exp(v_set1(x->m[r] - m), x->rounds);
    x->m[r] = m;
    v_store(x->l + 16 * r, v_mul(v_load(x->l + 16 * r), shrink));
    for (float *o = x->o + r * x->d_pad; o < x->o + (r + 1) * x->d_pad; o += 16)
        v_store(o, v_mul(v_load(o), shrink));
}

/* Writes the weights of keys [j, j + 32). */
INLINE void softmax_store(float *p, int j, v16 first, v16 second, bool rounds)
{
#ifdef VEC_PAIRS
    if (rounds) {
        v_store_pairs(p + j / 2, first, second);
        return;
    }
#endif
    v_store(p + j, rounds ? v_round_bf16(first) : first);
    v_store(p + j + 16, rounds ? v_round_bf16(second) : second);
}

INLINE void softmax_rows(const struct softmax *x, bool rounds, int n_rows)
{
    v16 top[SOFTMAX_ROWS], m[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
    for (int r = 0; x->cap > 0 && r < n_rows; r++)
        softmax_cap(x->p + r * KEYS, x->cap);
    EACH_ROW top[r] = softmax_top(x->p + r * KEYS, x->lo[r], x->hi[r], x->m[r]);
    EACH_ROW if (v_any_differs(top[r], v_set1(x->m[r])))
        softmax_raise(x, r, v_max_lane(top[r]));
    EACH_ROW m[r] = v_set1(x->m[r]);
    EACH_ROW sum[r] = v_load(x->l + 16 * r);
    for (int j = 0; j < KEYS; j += 32)
        EACH_ROW
        {
            float *p = x->p + r * KEYS;
            v16 first = softmax_exp(v_sub(v_load(p + j), m[r]), rounds),
                second = softmax_exp(v_sub(v_load(p + j + 16), m[r]), rounds);
            sum[r] = v_add(v_add(sum[r], first), second);
            softmax_store(p, j, first, second, rounds);
        }
    EACH_ROW v_store(x->l + 16 * r, sum[r]);
}

#define SOFTMAX(N, NAME)                                                                   \
    static void NAME(const struct softmax *x)                                              \
    {                                                                                      \
        if (x->rounds)                                                                     \
            softmax_rows(x, true, N);                                                      \
        else                                                                               \
            softmax_rows(x, false, N);                                                     \
    }
SOFTMAX(1, softmax_one)
SOFTMAX(SOFTMAX_ROWS, softmax_some)
#undef SOFTMAX

/* --- the converted block --------------------------------------------------------------------- */

/* Converts rows of n elements, `step` elements apart afterwards: one to f32, or PER_SLOT of bf16
 * to slots. */
INLINE void convert_rows(float *to, const uint8_t *from, enum dtype t, int n_rows, int n,
                         int step)
{
    const int per_slot = t == DTYPE_BF16 ? PER_SLOT : 1;
    for (int r = 0; r < n_rows; r += per_slot, to += step)
        for (int i = 0; i < n; i += 16) {
            int64_t at = (int64_t)r * n + i;
#ifdef VEC_PAIRS
            if (t == DTYPE_BF16) {
                v_store(to + i, v_zip_upto((const uint16_t *)from + at, n, n - i));
                continue;
            }
#endif
            v16 x = v_load_upto(from, t, at, n - i);
            v_store(to + i, t == DTYPE_BF16 ? v_flush(x) : x);
        }
}

static void block_convert(const struct attn_state *s, const uint8_t *k, const uint8_t *v)
{
    FOR_STATE(s->t->kv->dtype, t,
              convert_rows(s->k, k, (enum dtype)t, s->d_head, KEYS, KEYS);
              convert_rows(s->v, v, (enum dtype)t, KEYS, s->d_head, s->d_pad));
}

/* --- prefetching ------------------------------------------------------------------------------ */

/* With fewer queries memory takes longer than computing.  Where K and V are read as one stream, the
 * processor's own prefetching is then a quarter faster, because a prefetch takes one of the few
 * misses that a core can have in flight (docs/perf/). */
#define FETCH_QUERIES 3

/* Prefetches bytes [begin, begin + bytes) of the next part, in n_steps of one line per vector. */
static struct fetch fetch_of(const struct kv_part *b, size_t begin, size_t bytes,
                             size_t n_steps, int n_panels)
{
    size_t n = (size_t)n_panels, each = bytes / n_steps / n;
    if (b->next == NULL)
        return (struct fetch){0};
    return (struct fetch){b->next + begin, each, each * n};
}

/* Does step i of a strip: one element of each row, or a pair. The sums' lanes are in the order of
 * strip_order. */
INLINE void strip_step(v16 (*sum)[ATTN_WIDE], const struct operands *x, int t, int i,
                       int n_rows, int n_panels)
{
    const bool pairs = t == DTYPE_BF16 || t == PAIRS;
#ifdef VEC_PAIRS
    if (pairs) {
        v16 b[ATTN_WIDE];
        EACH_PANEL b[j] = t == PAIRS ? v_load((const float *)(const void *)x->b +
                                              i * x->b_step + j * x->b_panel)
                                     : v_zip((const uint16_t *)(const void *)x->b +
                                                 2 * i * x->b_step + j * x->b_panel,
                                             x->b_step);
        EACH_ROW
        {
            v16 a = v_set1(x->a[r * x->a_row + i * x->a_step]);
            EACH_PANEL sum[r][j] = v_dot_pairs(sum[r][j], a, b[j]);
        }
        return;
    }
#endif
    _Pragma("GCC unroll 2") for (int odd = pairs; odd >= 0; odd--)
    {
        const int at = pairs ? 2 * i + odd : i;
        v16 b[ATTN_WIDE];
        EACH_PANEL b[j] = v_load_split(x->b, t == PAIRS ? DTYPE_F32 : (enum dtype)t,
                                       at * x->b_step + j * x->b_panel);
        EACH_ROW
        {
            v16 a = v_set1(x->a[r * x->a_row + at * x->a_step]);
            EACH_PANEL sum[r][j] = pairs ? v_fma_flush(a, b[j], sum[r][j])
                                         : v_fma(a, b[j], sum[r][j]);
        }
    }
}

INLINE v16 strip_order(v16 a, int t)
{
    return t == DTYPE_BF16 && PER_SLOT == 1 ? v_reorder(a, DTYPE_BF16) : a;
}

/* Does all steps over n elements. */
INLINE void strip_walk(v16 (*sum)[ATTN_WIDE], const struct operands *x, int t, int n,
                       int n_rows, int n_panels)
{
    const int per_step = t == DTYPE_BF16 || t == PAIRS ? 2 : 1;
    const int n_steps = FETCH_STEPS / per_step;
    const uint8_t *fetch = x->fetch;
    int i = 0;
    for (; i + n_steps <= n / per_step; i += n_steps) {
        for (size_t line = 0; line < (size_t)n_panels && x->fetch != NULL; line++)
            __builtin_prefetch(fetch + line * x->fetch_line, 0, 2);
        fetch += x->fetch_step;
        _Pragma("GCC unroll 2") for (int step = 0; step < n_steps; step++)
            strip_step(sum, x, t, i + step, n_rows, n_panels);
    }
    for (; i < n / per_step; i++)
        strip_step(sum, x, t, i, n_rows, n_panels);
}

/* Returns where row i of a part begins, a row of K or of V. */
INLINE const uint8_t *part_row(const struct kv_part *b, int t, int i)
{
    size_t bytes = t == PAIRS ? sizeof(float) : dtype_bytes((enum dtype)t);
    return b->at + (size_t)(i / (t == PAIRS ? PER_SLOT : 1) * b->step) * bytes;
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
    st.whole = block_pos >= s->all_begin && block_pos + KEYS <= s->all_end;
    if (st.whole) {
        st.any = true;
        for (int r = 0; r < MM_ROWS; r++) {
            st.lo[r] = 0;
            st.hi[r] = KEYS;
        }
        return st;
    }
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
    st.all_lo = (st.all_lo + 1) / 2 * 2;
    st.all_hi = st.all_hi / 2 * 2;
    /* The rows have no keys in common: each row is computed alone. */
    if (st.all_lo >= st.all_hi)
        st.all_lo = st.all_hi = KEYS;
    return st;
}

/* Computes p[r][0..64) = q[r] . k. */
INLINE void scores(const struct attn_state *s, const struct strip *st,
                   const struct kv_part *b, int t, int n_rows)
{
    const int n_panels = ATTN_PANELS(n_rows), row = s->d_head / s->per_slot;
    size_t strip_bytes = b->head_bytes / (size_t)s->n_strips;
    for (int j0 = 0; j0 < KEY_VECS; j0 += n_panels) {
        v16 sum[MM_ROWS][ATTN_WIDE];
        struct fetch f = fetch_of(
            b, strip_bytes * (size_t)(st->idx * KEY_VECS + j0) / KEY_VECS,
            strip_bytes * (size_t)n_panels / KEY_VECS, (size_t)s->d_head / FETCH_STEPS,
            n_panels);
        const struct operands x = {
            .a = s->q + st->first * row,
            .a_row = 1,
            .a_step = n_rows,
            .b = b->at + (size_t)(j0 * 16) * (t == PAIRS ? 4 : dtype_bytes((enum dtype)t)),
            .b_step = KEYS,
            .b_panel = 16,
            .fetch = f.at,
            .fetch_line = f.line,
            .fetch_step = f.step,
        };
        EACH_ROW EACH_PANEL sum[r][j] = v_zero();
        strip_walk(sum, &x, t, s->d_head, n_rows, n_panels);
        EACH_ROW EACH_PANEL v_store(st->p + r * KEYS + (j0 + j) * 16,
                                    strip_order(sum[r][j], t));
    }
}

/* Some neighbouring rows of a strip, and n keys that they all see. */
struct weighing {
    int strip_idx, row; /* row: the first one, counted in the tile */
    const float *p;     /* weights of these keys, the rows 64 floats apart */
    int n;
};

/* Computes o[r][d..) += p[r] . v[..][d..) for n_panels vectors of d_head.  b begins with the first
 * of the keys. */
INLINE void weigh_panels(const struct attn_state *s, const struct weighing *w,
                         const struct kv_part *b, int t, int d, int n_rows, int n_panels)
{
    v16 sum[MM_ROWS][ATTN_WIDE];
    float *o = s->o + w->row * s->d_pad + d;
    size_t strip_bytes = b->head_bytes / (size_t)s->n_strips;
    size_t vec_bytes = strip_bytes * 16 / (size_t)s->d_pad;
    struct fetch f = fetch_of(
        b, strip_bytes * (size_t)w->strip_idx + vec_bytes / 16 * (size_t)d,
        vec_bytes * (size_t)n_panels, KEYS / FETCH_STEPS, n_panels);
    const struct operands x = {
        .a = w->p,
        .a_row = KEYS,
        .a_step = 1,
        .b = b->at + (size_t)d * (t == PAIRS ? 4 : dtype_bytes((enum dtype)t)),
        .b_step = b->step,
        .b_panel = 16,
        .fetch = f.at,
        .fetch_line = f.line,
        .fetch_step = f.step,
    };
    EACH_ROW EACH_PANEL sum[r][j] = strip_order(v_load(o + r * s->d_pad + j * 16), t);
    EACH_ROW EACH_PANEL if (t == DTYPE_BF16 || t == PAIRS) sum[r][j] = v_flush(sum[r][j]);
    strip_walk(sum, &x, t, w->n, n_rows, n_panels);
    EACH_ROW EACH_PANEL v_store(o + r * s->d_pad + j * 16, strip_order(sum[r][j], t));
}

INLINE void weigh(const struct attn_state *s, const struct weighing *w,
                  const struct kv_part *b, int t, int n_rows)
{
    const int n_panels = ATTN_PANELS(n_rows);
    int d = 0;
    for (; n_rows <= 2 && ATTN_WIDE > 4 && d + 16 * ATTN_WIDE <= s->d_pad;
         d += 16 * ATTN_WIDE)
        weigh_panels(s, w, b, t, d, n_rows, ATTN_WIDE);
    for (; d + 16 * n_panels <= s->d_pad; d += 16 * n_panels)
        weigh_panels(s, w, b, t, d, n_rows, n_panels);
    for (; d < s->d_pad; d += 16)
        weigh_panels(s, w, b, t, d, n_rows, 1);
}

/* Calls F with the type of a part as a constant. With VEC_PAIRS all state is bf16. */
#define FOR_PART(b, t, F)                                                                  \
    do {                                                                                   \
        if ((b)->type == PAIRS) {                                                          \
            enum { t = PAIRS };                                                            \
            F;                                                                             \
        } else {                                                                           \
            FOR_STATE((b)->type, t, F);                                                    \
        }                                                                                  \
    } while (0)

/* A pair of functions per number of rows: inlining them all into one confuses the register
 * allocator, and the compiler would move steps out of flushing_begin and flushing_end. */
#define ATTN(R)                                                                            \
    static __attribute__((noinline)) void scores_##R(                                      \
        const struct attn_state *s, const struct strip *st, const struct kv_part *b)       \
    {                                                                                      \
        FOR_PART(b, t, scores(s, st, b, t, R));                                            \
    }                                                                                      \
    static __attribute__((noinline)) void weigh_##R(                                       \
        const struct attn_state *s, const struct weighing *w, const struct kv_part *b)     \
    {                                                                                      \
        FOR_PART(b, t, weigh(s, w, b, t, R));                                              \
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

/* Subnormal numbers count as zero in steps that stand in for the instruction. */
static bool flushes(const struct kv_part *b)
{
    return PER_SLOT == 1 && b->type >= DTYPE_BF16;
}

static void strip_scores(const struct attn_state *s, const struct strip *st,
                         const struct kv_part *b)
{
    unsigned before = flushes(b) ? flushing_begin() : 0;
    attn_by_rows[st->n].scores(s, st, b);
    if (flushes(b))
        flushing_end(before);
}

static void weigh_n(const struct attn_state *s, const struct weighing *w,
                    const struct kv_part *b, int n)
{
    unsigned before = flushes(b) ? flushing_begin() : 0;
    attn_by_rows[n].weigh(s, w, b);
    if (flushes(b))
        flushing_end(before);
}

/* Processes n rows of the strip from `row` on, keys [lo, hi), which of bf16 state are pairs. */
static void weigh_rows(const struct attn_state *s, const struct strip *st,
                       const struct kv_part *b, int row, int n, int lo, int hi)
{
    struct weighing w = {st->idx, st->first + row, st->p + row * KEYS + lo / s->per_slot,
                         hi - lo};
    struct kv_part keys = *b;
    keys.at = part_row(b, b->type, lo);
    if (lo < hi)
        weigh_n(s, &w, &keys, n);
}

/* Processes a key of a row that does not see the other key of its pair: that one counts as zero. */
static void weigh_lone(const struct attn_state *s, const struct strip *st,
                       const struct kv_part *b, int row, int key)
{
    uint32_t pair[2 * ATTENTION_MAX_D_HEAD] = {0};
    const uint8_t *at = part_row(b, b->type, key);
    struct weighing w = {st->idx, st->first + row,
                         st->p + row * KEYS + key / 2 * 2 / s->per_slot, 2};
    struct kv_part keys = *b;
    keys.at = (const uint8_t *)pair;
    if (b->type == PAIRS && PER_SLOT == 2)
        for (int d = 0; d < b->step; d++)
            pair[d] = ((const uint32_t *)(const void *)at)[d] &
                      (key % 2 == 1 ? 0xffff0000 : 0xffff);
    else
        memcpy((uint8_t *)pair + (part_row(b, b->type, key % 2) - b->at), at,
               (size_t)(part_row(b, b->type, 1) - b->at));
    weigh_n(s, &w, &keys, 1);
}

/* Processes keys [lo, hi) of one row. */
static void weigh_row(const struct attn_state *s, const struct strip *st,
                      const struct kv_part *b, int row, int lo, int hi)
{
    bool pairs = b->type >= DTYPE_BF16;
    if (pairs && lo < hi && lo % 2 == 1)
        weigh_lone(s, st, b, row, lo++);
    weigh_rows(s, st, b, row, 1, lo, pairs ? hi / 2 * 2 : hi);
    if (pairs && lo < hi && hi % 2 == 1)
        weigh_lone(s, st, b, row, hi - 1);
}

static int clamp(int x, int lo, int hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Weighs V: the keys before the common part, the common part, the keys after it. */
static void strip_weigh(const struct attn_state *s, const struct strip *st,
                        const struct kv_part *b)
{
    for (int r = 0; r < st->n && !st->whole; r++)
        weigh_row(s, st, b, r, st->lo[r], clamp(st->all_lo, st->lo[r], st->hi[r]));
    weigh_rows(s, st, b, 0, st->n, st->all_lo, st->all_hi);
    for (int r = 0; r < st->n && !st->whole; r++)
        weigh_row(s, st, b, r, clamp(st->all_hi, st->lo[r], st->hi[r]), st->hi[r]);
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
                            .cap = s->cap,
                            .m = s->m + i,
                            .l = s->l + 16 * i,
                            .o = s->o + i * s->d_pad,
                            .d_pad = s->d_pad,
                            .rounds = s->t->kv->dtype == DTYPE_BF16};
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
            r++;
        }
    }
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

/* Describes a head's K or V in a block. `next` is the part that will be read next and is prefetched
 * meanwhile; `converted` is the converted copy of this part. */
static struct kv_part part_of(const struct attn_state *s, const uint8_t *at,
                              const uint8_t *next, const float *converted)
{
    size_t bytes = head_bytes_of(s->t->kv);
    if (s->t->n < FETCH_QUERIES && s->d_head <= 16 * ATTN_WIDE)
        next = NULL;
    if (s->converts)
        return (struct kv_part){(const uint8_t *)converted,
                                s->t->kv->dtype == DTYPE_BF16 ? PAIRS : DTYPE_F32, s->d_pad,
                                next, bytes};
    return (struct kv_part){at, s->t->kv->dtype, s->d_head, next, bytes};
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
        strip_scores(s, &st, &k);
        strip_softmax(s, &st);
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
        for (int head = 0; head < t->n_kv_heads; head++)
            head_attend(&s, i, head, next);
    }
    attn_end(&s);
}

#endif
