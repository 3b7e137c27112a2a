/* ops.h - the operations of the forward pass, one table per backend.
 *
 * Arithmetic contract.  It makes results independent of batch, neighbours, chunking and threads,
 * and lets `ref` judge `cpu` bit for bit wherever no exponential is involved:
 *
 *  - matmul: C[i][j] is the sum over k-blocks of MATMUL_K_BLOCK = 256, in ascending order, of
 *    partial sums; a partial sum starts at +0 and takes p = fma(a, w, p) in ascending k; then
 *    acc = acc + p (acc starts as the first partial sum).  Weights are converted to f32 exactly.
 *    Bias is added last.
 *  - matmul by weights in blocks (q8, q4_0, q4_1, q4_k, mxfp4): a row of W is cut along k into
 *    blocks of 32, each d * q + m with whole numbers q; d and m are f32.  The 4-bit types come from
 *    a file, with q from 0 to 15 (q4_blocks.h).  For q8, d is the block's largest |w| / 127,
 *    rounded up to f16; q is w / d, rounded to nearest even; there is no m; and the last block is
 *    filled up with zeros.  A row of A is cut into k-blocks of 256, and each k-block is rounded to
 *    whole numbers x of 8 bits, which count in steps of e * 2^-i.  e is the k-block's largest |a| /
 *    127, and each block of 32 has an i: the largest one, up to Q4_MOST_HALVED, for which largest
 *    |a| of the k-block * 2^-i is not below largest |a| of the block.  x = a * (127 / largest |a|
 *    of the k-block) * 2^i, to nearest even.  With s the exact sum of x q over a block, and z the
 *    sum of x * 2^-i rounded to a multiple of 1/8, p = fma(s * 2^-i, d, p), then p = fma(z, m, p),
 *    from +0 over the k-block's blocks in ascending k; s * 2^-i is exact.  For q4_k p takes the
 *    minimums at the end of the k-block: p = fma(sum of z t, -M, p), with an exact sum.  Then acc = fma(p, e, acc), from +0 over the k-blocks
 *    in ascending k; bias last.  For q4_0, s is the sum of x (q - 8), and there is no m.  A k-block
 *    of A whose largest |a| is below 2^-100 counts as zero; if it is 2^110 or more, an infinity or
 *    a NaN, e is NaN.
 *    For mxfp4, iq4_nl and iq4_xs, s is the sum of x v(q), with v from the type's table, and there
 *    is no m.
 *    6-bit weights (q6_k): the same in halves of blocks, each with a d = D * (a whole number of 8
 *    bits), without an m, and with s the sum of x (q - 32).  Q4_NUMERICS_VERSION is part of the
 *    fingerprint of a model with these weights.
 *    Weights of a file are exact.  Activations keep 8 bits, as in llama.cpp, because 16 bits halve
 *    the speed of many rows.  A product differs from the one with f32 activations by about 0.5 % of
 *    the sum of its terms' magnitudes (tests/tensor/test_q4.c, test_q8.c).  docs/MODELS.md says by
 *    how much a model's predictions differ.
 *  - matmul with bf16 weights and rounded activations (bf16r) is AMX's instruction.  a and w are
 *    bf16; a is rounded to nearest even.  Over a block of 32 along k, even = fma(a, w, even) over
 *    the even k and odd = fma(a, w, odd) over the odd k, both from +0 in ascending k.  acc = acc +
 *    (even + odd) from +0 over the blocks in ascending k; bias last.  The last block is filled up
 *    with zeros.
 *    Each of these operations but the bias takes a subnormal operand for zero, and its result is
 *    zero if it is below 2^-126 after rounding to 24 bits.  Weights are exact; activations keep 8
 *    bits.  BF16R_NUMERICS_VERSION is part of the fingerprint of a model with these weights.
 *  - norms: the sum of squares (or the sum) runs over 16 lanes (element i goes to lane i mod 16,
 *    lane = fma(x, x, lane)), which are then added pairwise: 16 -> 8 -> 4 -> 2 -> 1 (lane i + lane
 *    i + half); out = (x * scale) * w, scale = 1 / sqrtf(sum / n + eps).
 *  - attention: keys are taken in blocks of KV_BLOCK_TOKENS at fixed absolute positions, in
 *    ascending order, with the online-softmax recurrence; inside a block a score is an fma chain
 *    over ascending d_head with q * scale; the block maximum, then p_j = exp(s_j - m_new); the sum
 *    of p is kept in 16 lanes, as the norms', which are added at the end.  Sum and output are
 *    rescaled by exp(m_old - m_new) before, and the output takes fma(p_j, v_j, o) in ascending j.
 *    A key that the row does not see (attention_keys) is never touched.  Row and key counts never
 *    change the arithmetic of a row.
 *    With bf16 state on a CPU, q * scale * log2(e) and p_j are rounded to bf16, and exp is 2^x (see
 *    EXP2_ROUGH_1).  Chains take pairs of neighbours, of d_head or of keys at even positions, in
 *    ascending order, of a pair the second product before the first.  The unseen key of a pair
 *    counts as zero in both factors.  Subnormal factors, sums and steps count as zero.
 *  - delta_net: tokens are taken one after another, in ascending order, whatever the batch.  Every
 *    sum is an fma chain from +0: of a channel's convolution over its inputs, the oldest
 *    first; of S^T k and S^T q over ascending rows of S.  S is rounded after the decay and after
 *    the update.  The squares of q and k are added in the 16-lane order of the norms.
 *  - kv_fill: K is in the state dtype already; it is rotated in f32 (r1 = x1*c - x2*s, r2 = x2*c +
 *    x1*s, two products and one sum, unfused) and rounded again into the block; V is copied.
 *  - exp is the backend's own (deterministic, lane-independent); ref uses expf.
 *  - sample: whole-number weights (sampling.h), so that all backends choose the same token of the
 *    same logits, in whatever order they add.
 *
 * All operations return 0 or the stream's sticky error. A wrong shape is a bug and is asserted.
 * On a device whose act_dtype is not f32, activations that are f32 below have act_dtype.  "T" is
 * the state dtype: f32, f16 or bf16. */
#ifndef TENSOR_OPS_H
#define TENSOR_OPS_H

#include <string.h>

#include "tensor/sampling.h"
#include "tensor/tensor.h"

#define MATMUL_K_BLOCK  256
#define KV_BLOCK_TOKENS 64
#define Q8_BLOCK        32
#define Q4_BLOCK        32

/* Raise these versions whenever a product with bf16r weights, or with weights in blocks (q8, q4_0
 * and so on), gives other bits. */
#define BF16R_NUMERICS_VERSION 1
#define Q4_NUMERICS_VERSION    4

/* Most times that the steps of a k-block's rounded activations are halved for one of its blocks. */
#define Q4_MOST_HALVED 15

/* Limits that every backend supports. A model that needs more is refused when its config is read.
 */
#define MATMUL_MAX_K         65536 /* length of a row of a weight */
#define ATTENTION_MAX_D_HEAD 576
#define ATTENTION_MAX_GROUP  96 /* query heads that share a KV head */

/* Attention over bf16 state takes 2^x for x <= 0 as 2^n (1 + r (c1 + r (c2 + r c3))), by fma, where
 * n is x rounded to even, and r = x - n; below -125 as 0.  Its relative error is at most 1.1e-4. */
#define LOG2_E       1.44269504f
#define EXP2_ROUGH_1 0.69328331f
#define EXP2_ROUGH_2 0.24221143f
#define EXP2_ROUGH_3 0.05500584f

/* A weight matrix W [n][k] (out x in, as Hugging Face stores it) in the backend's own layout. */
struct weight {
    enum dtype dtype;
    int64_t n, k;
    struct buf mem; /* device memory; its allocator owns it */
};

/* The cache of one layer: pages of K and V, or, of a recurrent layer, one state for each sequence
 * (delta_net): state i starts at blocks + i * block_stride, and n_kv is 0.
 *
 * A block is two opaque regions of block_bytes / 2, laid out by
 * the backend: K, then V.  On the CPU K is [n_kv][d_head][64] (so that scores and rotations run
 * along tokens) and V is [n_kv][64][d_head], with elements of dtype T; on a GPU both are
 * [n_kv][64][d_head]. */
struct kv_layer {
    uint8_t *blocks; /* block b starts at blocks + b * block_stride */
    size_t block_stride;
    enum dtype dtype;
    int n_kv, d_head;
    /* The layer has one block, which is read at once, so it should stay in the caches. */
    bool is_scratch;
    int stage; /* stage that has the blocks (group.h) */
};

static inline size_t kv_block_bytes(int n_kv, int d_head, enum dtype t)
{
    return (size_t)2 * KV_BLOCK_TOKENS * (size_t)n_kv * (size_t)d_head * dtype_bytes(t);
}

/* One ragged batch: rows of several sequences, each a run of consecutive positions. */
struct ragged {
    int n_rows, n_seqs;
    const int32_t *pos;     /* [n_rows] absolute position of each row */
    const int32_t *seq_row; /* [n_seqs + 1] first row of each sequence */
    /* [n_seqs] block tables: position p lies in tables[s][p / 64] */
    const int32_t *const *tables;
    /* [n_seqs] states of the sequences in recurrent layers; NULL: sequence s has state s */
    const int32_t *states;
    /* [n_seqs] how many of a sequence's last rows are ahead: their tokens are guesses (delta_net),
     * at most DELTA_AHEAD; NULL: none */
    const int32_t *ahead;
    /* Identifies this content (ragged_new_id), so that a device with memory of its own copies it
     * once for all operations that use it; 0: it is copied each time. */
    uint64_t id;
};
uint64_t ragged_new_id(void); /* Returns an id that no batch has had. Any thread. */

/* RoPE: cos and sin [max_pos][d_rot / 2] f32, made by the model. The first d_rot elements of a head
 * are rotated, element i with element i + d_rot / 2. */
struct rope {
    const float *cos, *sin;
    /* The same values as cos and sin, by blocks of 64 positions, for kv_load: [max_pos / 64 rounded
     * up][d_rot / 2][64]. */
    const float *cos_t, *sin_t;
    int64_t max_pos;
    int d_rot; /* 0: no rotation */
};

/* Whole chunks of one sequence, as kv_load takes them: chunk i lies at first + i * stride, has
 * positions [pos0 + 64 i, pos0 + 64 (i + 1)) and goes to block blocks[i]. */
struct kv_chunks {
    const void *first;
    size_t stride;
    size_t v_at; /* bytes from a chunk's K to its V; 0: V follows the layer's heads of K */
    /* Chunks are [n_kv][64][d_head] of V alone, which is K before RoPE (kv_fill). */
    bool v_is_k;
    const int32_t *blocks; /* [n], in host memory */
    int n;
    int32_t pos0; /* a multiple of 64 */
};

static inline size_t kv_chunks_v_at(const struct kv_layer *kv, const struct kv_chunks *c)
{
    return c->v_at != 0 ? c->v_at : kv_block_bytes(kv->n_kv, kv->d_head, kv->dtype) / 2;
}

/* Which keys a row sees (attention_keys), and how its scores become weights. */
struct attention_rule {
    float scale; /* factor of q . k */
    float cap;   /* a score s becomes cap * tanh(s / cap); 0: it stays */
    int window;  /* most tokens seen, the row's own included; 0: all */
    /* [heads] The score of a key without a value; NULL: there is no such key. The score enters only
     * the softmax's sum. With sinks the online-softmax recurrence starts with this score as the
     * maximum, and with a sum of 1. */
    const float *sinks;
    /* The row also sees the tokens behind it, window - 1 of them at most.  The batch then has all
     * rows of each sequence.  Only on devices whose memory is the host's. */
    bool both_ways;
};

/* Returns the positions [begin, end) of the keys that the row at position p sees, in a batch whose
 * last row of that sequence is at position `last`. */
struct attention_keys {
    int32_t begin, end;
};
static inline struct attention_keys attention_keys(const struct attention_rule *rule,
                                                   int32_t p, int32_t last)
{
    struct attention_keys k = {0, rule->both_ways ? last + 1 : p + 1};
    if (rule->window > 0 && p + 1 > rule->window)
        k.begin = p + 1 - rule->window;
    if (rule->window > 0 && k.end > p + rule->window)
        k.end = p + rule->window;
    return k;
}

enum activation {
    ACTIVATION_SILU, /* x / (1 + exp(-x)) */
    ACTIVATION_RELU,
    ACTIVATION_GELU,      /* erf form */
    ACTIVATION_GELU_TANH, /* tanh approximation */
    /* The last four only on devices whose memory is the host's. */
    ACTIVATION_TANH,
    ACTIVATION_SIGMOID, /* 1 / (1 + exp(-x)) */
    ACTIVATION_NONE,    /* x */
    /* act_mul alone: g / (1 + exp(-1.702 g)) * (u + 1), with g at most 7, u from -7 to 7 */
    ACTIVATION_SWIGLU_CLAMPED,
};

enum { MATMUL_MANY = 3 }; /* products in one operation, at most */

/* One of the products of matmul_many: rows that all products share, times a weight. */
struct product {
    struct mat c; /* [m][n] f32 */
    const struct weight *w;
    const float *bias; /* [n] bias; NULL: none is added */
};

/* The rule by which the tokens of a recurrent layer change its state. */
enum delta_kind {
    DELTA_NET,        /* the gated delta rule (Gated DeltaNet, arXiv:2412.06464) */
    DELTA_SHORT_CONV, /* a short convolution alone (LFM2): no S; n_k is n_v, d_k is 0 */
    DELTA_MAMBA2,     /* Mamba-2 (arXiv:2405.21060): q, k and v are its C, B and x */
};

/* The rule of one recurrent layer.  n_v / n_k heads of V belong to each head of Q and K. Pointers
 * are NULL where the rule's kind does not have the numbers. */
struct delta_rule {
    enum delta_kind kind;
    int n_k, n_v; /* heads of Q and of K; heads of V: a multiple of n_k */
    /* Head h of V belongs to head h % n_k of Q and K; else to head h / (n_v / n_k). */
    bool tiled;
    int d_k, d_v;      /* widths of their heads: multiples of 16, at most DELTA_MAX_WIDTH */
    int n_conv;        /* inputs of the convolution: at most DELTA_MAX_CONV */
    const float *conv; /* [channels][n_conv], the factor of the oldest input first */
    const float *conv_bias;       /* [channels] (Mamba-2) */
    const float *a_log, *dt_bias; /* [n_v] */
    const float *skip;            /* [n_v] factor of v in the output (Mamba-2) */
};
#define DELTA_MAX_CONV  4
#define DELTA_MAX_WIDTH 256
#define DELTA_AHEAD     15 /* most rows of a sequence that are ahead */

/* Returns the head of Q and K to which head h of V belongs. */
static inline int delta_k_head(const struct delta_rule *d, int h)
{
    return d->tiled ? h % d->n_k : h / (d->n_v / d->n_k);
}
static inline int64_t delta_channels(const struct delta_rule *d)
{
    return (int64_t)2 * d->n_k * d->d_k + (int64_t)d->n_v * d->d_v;
}
/* Returns how many numbers of a row stand before its channels: beta and a of each head of V. */
static inline int64_t delta_gates_cols(const struct delta_rule *d)
{
    return d->kind != DELTA_SHORT_CONV ? (int64_t)2 * d->n_v : 0;
}
/* A state: 64 bytes, of which the first two int64 are the number of tokens that it has seen and the
 * number of inputs that are kept behind it | the channels' last inputs [n_conv - 1][channels] f32 |
 * S [n_v][d_k][d_v] f32.  Kept inputs: [DELTA_AHEAD][delta_in_cols] f32 at delta_kept_at. */
#define DELTA_HEADER 64
/* Makes a state count as having seen n tokens, for measurements in the middle of a context. */
static inline void delta_state_count(void *state, int64_t n)
{
    memcpy(state, &n, sizeof n);
}
static inline size_t delta_state_bytes(const struct delta_rule *d)
{
    int64_t n = (d->n_conv - 1) * delta_channels(d) + (int64_t)d->n_v * d->d_k * d->d_v;
    return DELTA_HEADER + (size_t)n * sizeof(float);
}
static inline int64_t delta_in_cols(const struct delta_rule *d)
{
    return delta_gates_cols(d) + delta_channels(d);
}
static inline size_t delta_kept_at(const struct delta_rule *d)
{
    return (delta_state_bytes(d) + 63) & ~(size_t)63;
}
static inline int64_t *delta_n_seen(uint8_t *state)
{
    return (int64_t *)(void *)state;
}
static inline int64_t *delta_n_kept(uint8_t *state)
{
    return delta_n_seen(state) + 1;
}
/* The inputs that are kept behind a state. */
static inline float *delta_kept(const struct delta_rule *d, uint8_t *state)
{
    return (float *)(void *)(state + delta_kept_at(d));
}
/* Returns the bytes of a state with room for kept inputs. */
static inline size_t delta_room_bytes(const struct delta_rule *d)
{
    size_t n = DELTA_AHEAD * (size_t)delta_in_cols(d) * sizeof(float);
    return delta_kept_at(d) + ((n + 63) & ~(size_t)63);
}

struct ops {
    /* --- weights: once, at load --- */
    size_t (*weight_bytes)(enum dtype t, int64_t n, int64_t k);
    /* Packs rows [row, row + n_rows) of w from row-major src [n_rows][k].  src has dtype w->dtype;
     * f32 if that is q8; bf16 if it is bf16r; blocks (q4_blocks.h) if it has 4 or 6 bits, and k is
     * then a multiple of a block.  Rows that are never packed are zero.  Panels have 16 rows, but
     * row may be any number.  -ERANGE: q8 cannot hold an infinity, a NaN or a number above 8.3e6.
     */
    int (*weight_pack)(struct stream *s, struct weight *w, int64_t row, const void *src,
                       int64_t n_rows);
    /* The same for q8, from the blocks of 34 bytes of q8_0: d f16 | 32 x 8 bits.  Gives the bits of
     * weight_pack with the decoded numbers.  k is a multiple of 32.  NULL: the device cannot. */
    int (*weight_pack_q8_0)(struct stream *s, struct weight *w, int64_t row,
                            const uint8_t *src, int64_t n_rows);
    /* out [n][k] T = rows ids[0..n) of a packed weight (tied embeddings).  Exact; for q8, q * d
     * rounded to T; for 4 and 6 bits, the values of q4_blocks.h rounded to T. */
    int (*weight_rows)(struct stream *s, struct mat out, const struct weight *w,
                       const int32_t *ids);

    /* --- rows --- */
    /* out [n][d] T = rows ids[0..n) of table [vocab][d], times `scale`, rounded to T.  On a CPU the
     * table may consist of rows of blocks (q4_blocks.h), at any address. */
    int (*embed)(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
                 float scale);
    /* Sets out [n][d] f32 to the RMS norm, or the layer norm, of each row of x [n][d], T or f32.
     * w and b are [d] f32; on a CPU b may be NULL. */
    int (*rmsnorm)(struct stream *s, struct mat out, struct mat x, const float *w,
                   float eps);
    int (*layernorm)(struct stream *s, struct mat out, struct mat x, const float *w,
                     const float *b, float eps);
    /* RMS norm of each head in place: x [n][heads * d_head] f32, w [d_head]; on a CPU w may be
     * NULL, which stands for ones. */
    int (*head_norm)(struct stream *s, struct mat x, int d_head, const float *w, float eps);
    /* c [m][n] f32 = a [m][k] f32 . w^T (+ bias [n], may be NULL). */
    int (*matmul)(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias);
    /* p[i].c = a . p[i].w^T (+ p[i].bias) for i < n <= MATMUL_MANY, with the same bits as n calls
     * of matmul.  Where possible it rounds the rows of a, and starts the device's threads, only
     * once.  NULL on a device on which n calls of matmul are as fast. */
    int (*matmul_many)(struct stream *s, struct mat a, const struct product *p, int n);
    /* out [n][k] f32 = what a product with weights in blocks leaves out of the rows of a [n][k] f32
     * as it rounds them: a - x * 2^-i * e, each step rounded to f32.  A k-block that counts as zero
     * is copied; one whose e is NaN gives NaNs.  out is not a.  NULL on a GPU. */
    int (*round_rest)(struct stream *s, struct mat out, struct mat a);
    /* Says which n <= MATMUL_MANY weights are read after the next product.  Threads that wait for
     * each other meanwhile bring the beginnings of these weights into their caches.  It changes no
     * result, and gains time if products have few rows.  NULL on a device on which it gains
     * nothing. */
    void (*expect)(struct stream *s, const struct weight *const *w, int n);
    /* out = round_T(x): f32 -> T, also T -> f32 (exact). */
    int (*convert)(struct stream *s, struct mat out, struct mat x);
    /* out [n][d] = a + b in f32, rounded to out's dtype; a of T or f32, b f32. */
    int (*add)(struct stream *s, struct mat out, struct mat a, struct mat b);
    /* sum [n][d] f32 = x + y as in add, and out [n][d] f32 = its rmsnorm, or its layernorm if b is
     * not NULL. */
    int (*add_norm)(struct stream *s, struct mat out, struct mat sum, struct mat x,
                    struct mat y, const float *w, const float *b, float eps);
    /* out [n][f] f32 = act(gate_up[:, :f]) * gate_up[:, f:], gate_up [n][2f] f32. */
    int (*act_mul)(struct stream *s, struct mat out, struct mat gate_up,
                   enum activation act);
    /* x = act(x) in place, f32. */
    int (*act)(struct stream *s, struct mat x, enum activation act);
    /* Sets *finite to whether x (of dtype T) has neither infinities nor NaNs. Waits for the result.
     */
    int (*all_finite)(struct stream *s, struct mat x, bool *finite);

    /* --- attention --- */
    /* Rotates q [n][heads * d_head] f32 in place, each row by its position in r. */
    int (*rope)(struct stream *s, struct mat q, int d_head, const struct rope *rope,
                const struct ragged *r);
    /* Writes K and V into blocks.  rows [n][2 * n_kv * d_head] T: K (after bias and QK norm, before
     * RoPE) then V, one row per row of r.  Rows may be wider, with more heads: the layer's own are
     * then the first of each half.  Rows [n][n_kv * d_head] have K alone: V is K before RoPE.  Only
     * on devices whose memory is the host's, and so kv_load and kv_pack. */
    int (*kv_fill)(struct stream *s, const struct kv_layer *kv, struct mat rows,
                   const struct rope *rope, const struct ragged *r);
    /* Does rope of q and kv_fill of rows in one operation, on devices where that saves a launch. */
    int (*rope_kv_fill)(struct stream *s, struct mat q, const struct kv_layer *kv,
                        struct mat rows, const struct rope *rope, const struct ragged *r);
    /* Loads whole chunks into blocks.  A chunk is laid out like a block, but with K before RoPE
     * (kv_fill without rotation makes them), and is kv_block_bytes long.  The bits equal those of
     * kv_fill of the same rows, at the speed of memory, because nothing is transposed.  On a CPU it
     * runs on the calling thread, and callers divide chunks among threads; on a GPU it is one
     * launch. */
    int (*kv_load)(struct stream *s, const struct kv_layer *kv,
                   const struct kv_chunks *chunks, const struct rope *rope);
    /* Makes the chunk that kv_load takes from rows [64][2 * n_kv * d_head] T, or from those of V
     * alone. Both are in *host* memory on every device: saving packs in the background. */
    int (*kv_pack)(struct stream *s, void *chunk, struct mat rows, int n_kv, int d_head);
    /* Reads back what kv_fill has written, for tests and tools: out [n][2 * n_kv * d_head] T, K
     * rotated. */
    int (*kv_read)(struct stream *s, struct mat out, const struct kv_layer *kv,
                   const struct ragged *r);
    /* out [n][heads * d_head] f32; q is already rotated. */
    int (*attention)(struct stream *s, struct mat out, struct mat q,
                     const struct kv_layer *kv, const struct ragged *r,
                     const struct attention_rule *rule);

    /* --- recurrent layers --- */
    /* Advances the states of r's sequences over their rows, and computes out [n][n_v * d_v] f32.  A
     * row of `in` [n][delta_in_cols] f32 has beta and a of the heads of V, then the channels: q,
     * k, v.  `in` is overwritten.  Token by token, for each head of V with its state S [d_k][d_v]:
     *     c = silu(sum of conv[i] * the channel's input i tokens ago), for each channel
     *     q, k = q, k / sqrt(|.|^2 + 1e-6), and q = q / sqrt(d_k)
     *     S = S * exp(-exp(a_log) * log(1 + exp(a + dt_bias)))
     *     S = S + k (sigmoid(beta) * (v - S^T k))^T
     *     out = S^T q
     * A convolution alone (DELTA_SHORT_CONV) has only channels, and out = c without silu.
     * DELTA_MAMBA2 ignores the row's beta:
     *     c = silu(conv_bias + sum ...)
     *     dt = log(1 + exp(a + dt_bias)), and S = S * exp(-exp(a_log) * dt) + k (dt * v)^T
     *     out = S^T q + skip * v
     * The row at position 0 begins with a zero state.  The first row of a sequence at another
     * position continues the state.  The state advances over no row that is ahead (r->ahead).  The
     * inputs of these rows are kept, and the first row of the next call says by its position how
     * many of them count: the state advances over those first.  Rows that are ahead need states
     * with room for them (delta_room_bytes).  out.data NULL: only the states are wanted, and q is
     * read in the last n_conv - 1 rows alone.  NULL on a device that lacks the operation. */
    int (*delta_net)(struct stream *s, struct mat out, struct mat in,
                     const struct delta_rule *d, const struct kv_layer *states,
                     const struct ragged *r);

    /* --- sampling --- */
    /* Sets ids[i], in device memory, to the token that rows[i], in host memory, chooses from row i
     * of logits [n][vocab] f32.  Candidates are all logits but NaNs, ordered by logit, the largest
     * first, and by id, the lowest first.
     *  1. If the temperature is not above 0, or the first candidate's logit is infinite, the first
     *     candidate is chosen; SAMPLE_NO_TOKEN if all logits are NaN.
     *  2. A candidate's weight is exp((logit - largest) / temperature).
     *  3. top_k keeps the first top_k candidates.  Of these, top_p keeps the shortest run from the
     *     first on whose weight is at least top_p times the weight of all.  Of these, min_p keeps
     *     the candidates whose weight is at least min_p times the first one's.
     *  4. The weights of the survivors are added up in the order above if top_k or top_p is on,
     *     else in the order of ids.  The survivor at which the sum first exceeds `draw` times the
     *     total is chosen. */
    int (*sample)(struct stream *s, int32_t *ids, struct mat logits,
                  const struct sample_row *rows);

    /* --- checks of stored bytes --- */
    /* Sets out[i], in device memory, to checksum64 (base/hash.h) of the n_bytes[i] bytes at first +
     * i * stride, which are device memory; first and stride are multiples of 16.  n_bytes is host
     * memory, read before the call returns.  On every device the stream may also be of kind
     * STREAM_INLINE, because the operation needs nothing of a stream but its order. */
    int (*checksum)(struct stream *s, uint64_t *out, const void *first, size_t stride,
                    const uint32_t *n_bytes, int n);

    /* --- recording --- */
    /* Runs queue(arg), or replays its recording.  For a given key, queue enqueues the same
     * operations on the same buffers each time; only r and the buffers' contents may differ.  `at`
     * is device memory that the operations use.  On a device group all memory that they use lies on
     * one stage, all_gather may be among them, and queue may run several times, each time with only
     * a part of its operations taking effect.  record is NULL on a device on which queueing an
     * operation costs nothing beside its work. */
    int (*record)(struct stream *s, const struct ragged *r, uint64_t key, const void *at,
                  int (*queue)(void *arg), void *arg);
};

#endif
