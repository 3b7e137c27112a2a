/* test_failed.c - an operation on a stream that has failed returns the failure, and misuse of an
 * operation is asserted, on every device. File readers pass calls on. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/pool.h"
#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/q4_blocks.h"
#include "tensor/sampling.h"

enum { ROWS = 64, D = 256, D_HEAD = 64, N_KV = 2 };

/* Memory of every operation: the same for all, and large enough for each. */
struct lab {
    struct device *d;
    struct stream *s;
    float a[ROWS * 2 * D], b[ROWS * 2 * D], w[D];
    int32_t ids[ROWS], pos[ROWS], seq_row[2], blocks[1];
    const int32_t *tables[1];
    float cos[ROWS * D_HEAD], sin[ROWS * D_HEAD];
    uint8_t block[N_KV * 2 * D_HEAD * KV_BLOCK_TOKENS * sizeof(float)];
    struct weight weight;
};

static struct lab lab;

static void lab_open(const char *device, struct pool *pool)
{
    memset(&lab, 0, sizeof lab);
    assert_int_equal(device_open(device, NULL, pool, &lab.d, NULL), 0);
    assert_int_equal(stream_create(lab.d, STREAM_COMPUTE, &lab.s, NULL), 0);
    for (int i = 0; i < ROWS; i++)
        lab.pos[i] = i;
    lab.seq_row[1] = ROWS;
    lab.tables[0] = lab.blocks;
}

static void weight_open(enum dtype t)
{
    size_t bytes = lab.d->ops->weight_bytes(t, D, D);
    lab.weight = (struct weight){.dtype = t, .n = D, .k = D};
    assert_int_equal(buf_alloc(lab.d, MEM_DEVICE, bytes, &lab.weight.mem, NULL), 0);
}

/* Arguments of all operations. */
struct args {
    struct stream *s;
    struct mat a, b, c, wide; /* f32: [64][256] each, but wide [64][512] */
    struct ragged r;
    struct rope rope;
    struct kv_layer kv;
    struct kv_chunks chunks;
    struct weight w;
    struct sample_row rows[ROWS];
    int64_t pack_row, n_pack;
    int d_head, n_sums;
    uint8_t *first; /* the first of n_sums runs of bytes, 64 apart */
    size_t stride;
};

static struct args good_args(void)
{
    struct args x = {.s = lab.s,
                     .a = mat_of(lab.a, DTYPE_F32, ROWS, D),
                     .b = mat_of(lab.b, DTYPE_F32, ROWS, D),
                     .c = mat_of(lab.b, DTYPE_F32, ROWS, D),
                     .wide = mat_of(lab.b, DTYPE_F32, ROWS, 2 * D),
                     .r = {.n_rows = ROWS,
                           .n_seqs = 1,
                           .pos = lab.pos,
                           .seq_row = lab.seq_row,
                           .tables = lab.tables},
                     .rope = {.cos = lab.cos,
                              .sin = lab.sin,
                              .cos_t = lab.cos,
                              .sin_t = lab.sin,
                              .max_pos = ROWS,
                              .d_rot = D_HEAD},
                     .kv = {.blocks = lab.block,
                            .block_stride = kv_block_bytes(N_KV, D_HEAD, DTYPE_F32),
                            .dtype = DTYPE_F32,
                            .n_kv = N_KV,
                            .d_head = D_HEAD},
                     .w = lab.weight,
                     .n_pack = 1,
                     .d_head = D_HEAD,
                     .n_sums = 2,
                     .first = (uint8_t *)lab.a,
                     .stride = 64};
    x.chunks = (struct kv_chunks){
        .first = lab.block, .stride = x.kv.block_stride, .blocks = lab.blocks, .n = 1};
    return x;
}

enum operation {
    WEIGHT_PACK,
    WEIGHT_ROWS,
    MATMUL,
    MATMUL_TWICE,
    EMBED,
    RMSNORM,
    LAYERNORM,
    HEAD_NORM,
    CONVERT,
    ADD,
    ADD_NORM,
    ACT_MUL,
    ACT,
    ALL_FINITE,
    ROPE,
    KV_FILL,
    ROPE_KV_FILL,
    KV_LOAD,
    KV_PACK,
    KV_READ,
    ATTENTION,
    SAMPLE,
    CHECKSUM,
    N_OPERATIONS
};

static int operate_on(enum operation i, struct args *x)
{
    const struct ops *op = lab.d->ops;
    struct stream *s = x->s;
    struct product p[2] = {{x->b, &x->w, NULL}, {x->b, &x->w, NULL}};
    uint64_t sums[2];
    uint32_t n_bytes[2] = {64, 64};
    bool finite;
    switch (i) {
    case WEIGHT_PACK:
        return op->weight_pack(s, &x->w, x->pack_row, lab.a, x->n_pack);
    case WEIGHT_ROWS:
        return op->weight_rows(s, x->a, &x->w, lab.ids);
    case MATMUL:
        return op->matmul(s, x->b, x->a, &x->w, NULL);
    case MATMUL_TWICE:
        return op->matmul_many != NULL ? op->matmul_many(s, x->a, p, 2)
                                       : op->matmul(s, x->b, x->a, &x->w, NULL);
    case EMBED:
        return op->embed(s, x->a, x->b, lab.ids, 1);
    case RMSNORM:
        return op->rmsnorm(s, x->a, x->b, lab.w, 1);
    case LAYERNORM:
        return op->layernorm(s, x->a, x->b, lab.w, lab.w, 1);
    case HEAD_NORM:
        return op->head_norm(s, x->a, x->d_head, lab.w, 1);
    case CONVERT:
        return op->convert(s, x->a, x->b);
    case ADD:
        return op->add(s, x->a, x->b, x->c);
    case ADD_NORM:
        return op->add_norm(s, x->a, x->b, x->c, x->c, lab.w, NULL, 1);
    case ACT_MUL:
        return op->act_mul(s, x->a, x->wide, ACTIVATION_RELU);
    case ACT:
        return op->act(s, x->a, ACTIVATION_RELU);
    case ALL_FINITE:
        return op->all_finite(s, x->a, &finite);
    case ROPE:
        return op->rope(s, x->a, x->d_head, &x->rope, &x->r);
    case KV_FILL:
        return op->kv_fill(s, &x->kv, x->b, &x->rope, &x->r);
    case ROPE_KV_FILL:
        return op->rope_kv_fill(s, x->a, &x->kv, x->b, &x->rope, &x->r);
    case KV_LOAD:
        return op->kv_load(s, &x->kv, &x->chunks, &x->rope);
    case KV_PACK:
        return op->kv_pack(s, lab.block, x->b, N_KV, D_HEAD);
    case KV_READ:
        return op->kv_read(s, x->b, &x->kv, &x->r);
    case ATTENTION:
        return op->attention(s, x->a, x->b, &x->kv, &x->r,
                             &(struct attention_rule){.scale = 1});
    case SAMPLE:
        return op->sample(s, lab.ids, x->a, x->rows);
    case CHECKSUM:
        return op->checksum(s, sums, x->first, x->stride, n_bytes, x->n_sums);
    case N_OPERATIONS:
        break;
    }
    return 1;
}

static int operate(enum operation i)
{
    struct args x = good_args();
    return operate_on(i, &x);
}

TEST(test_operations_return_the_streams_failure)
{
    static const char *const names[] = {"ref", "cpu"};
    struct pool *pool = NULL;
    assert_int_equal(pool_create(2, &pool, NULL), 0);
    for (int k = 0; k < 2; k++) {
        lab_open(names[k], pool);
        for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16R; t++) {
            weight_open(t);
            for (int i = 0; i < N_OPERATIONS; i++) {
                assert_int_equal(operate((enum operation)i), 0);
                stream_fail(lab.s, -EIO, "gone");
                if (operate((enum operation)i) != -EIO)
                    fail_msg("%s, %s: operation %d does not return the failure", names[k],
                             dtype_name(t), i);
                assert_int_equal(stream_recover(lab.s), 0);
            }
            buf_free(lab.d, &lab.weight.mem);
        }
        stream_destroy(lab.s);
        device_close(lab.d);
    }
    pool_destroy(pool);
}

/* --- misuse ----------------------------------------------------------------------------------- */

static const int32_t late[2] = {1, ROWS}, early[2] = {0, ROWS - 1};

#define SPOIL(name, statement)                                                             \
    static void name(struct args *x)                                                       \
    {                                                                                      \
        statement;                                                                         \
    }
SPOIL(a_row_less, x->a.rows--)
SPOIL(a_column_less, x->a.cols--)
SPOIL(a_is_half, x->a.dtype = DTYPE_F16)
SPOIL(a_is_packed, x->a.dtype = DTYPE_Q8)
SPOIL(a_is_nowhere, x->a.data = NULL)
SPOIL(a_has_half_rows, x->a.ld = D / 2)
SPOIL(b_row_less, x->b.rows--)
SPOIL(b_column_less, x->b.cols--)
SPOIL(b_is_half, x->b.dtype = DTYPE_F16)
SPOIL(b_is_nowhere, x->b.data = NULL)
SPOIL(c_row_less, x->c.rows--)
SPOIL(c_column_less, x->c.cols--)
SPOIL(c_is_nowhere, x->c.data = NULL)
SPOIL(wide_column_less, x->wide.cols--)
SPOIL(wide_row_less, x->wide.rows--)
SPOIL(wide_is_half, x->wide.dtype = DTYPE_F16)
SPOIL(row_before, x->pack_row = -1)
SPOIL(row_behind, x->pack_row = D)
SPOIL(rows_behind, x->n_pack = D + 1)
SPOIL(rows_below_0, x->n_pack = -1)
SPOIL(weight_column_less, x->w.k--)
SPOIL(weight_row_less, x->w.n--)
SPOIL(heads_do_not_fit, x->d_head = 60)
SPOIL(fewer_rows, x->r.n_rows--)
SPOIL(sequences_below_0, x->r.n_seqs = -1)
SPOIL(sequences_begin_later, x->r.seq_row = late)
SPOIL(sequences_end_before, x->r.seq_row = early)
SPOIL(position_behind, x->rope.max_pos = ROWS - 1)
SPOIL(rotation_is_odd, x->rope.d_rot = 63)
SPOIL(rotation_is_wide, x->rope.d_rot = D_HEAD + 2)
SPOIL(rotation_below_0, x->rope.d_rot = -2)
SPOIL(other_heads, x->kv.n_kv = 3)
SPOIL(state_is_half, x->kv.dtype = DTYPE_F16)
SPOIL(begins_inside, x->chunks.pos0 = 1)
SPOIL(begins_before, x->chunks.pos0 = -64)
SPOIL(ends_behind, x->chunks.pos0 = 64)
SPOIL(chunks_below_0, x->chunks.n = -1)
SPOIL(draws_1, x->rows[ROWS - 1].draw = 1)
SPOIL(draws_below_0, x->rows[ROWS - 1].draw = -0.1)
SPOIL(no_logits, x->a.cols = 0)
SPOIL(first_is_odd, x->first += 8)
SPOIL(stride_is_odd, x->stride = 72)
SPOIL(sums_below_0, x->n_sums = -1)

static const struct misuse {
    enum operation op;
    void (*spoil)(struct args *x);
} misuses[] = {
    {WEIGHT_PACK, row_before},
    {WEIGHT_PACK, row_behind},
    {WEIGHT_PACK, rows_behind},
    {WEIGHT_PACK, rows_below_0},
    {WEIGHT_ROWS, a_column_less},
    {MATMUL, a_row_less},
    {MATMUL, a_column_less},
    {MATMUL, a_is_half},
    {MATMUL, b_row_less},
    {MATMUL, b_column_less},
    {MATMUL, b_is_half},
    {MATMUL, weight_column_less},
    {MATMUL, weight_row_less},
    {MATMUL_TWICE, a_row_less},
    {MATMUL_TWICE, b_column_less},
    {MATMUL_TWICE, a_is_half},
    {EMBED, a_column_less},
    {EMBED, b_column_less},
    {EMBED, b_is_nowhere},
    {RMSNORM, a_row_less},
    {RMSNORM, a_column_less},
    {RMSNORM, b_row_less},
    {LAYERNORM, a_row_less},
    {LAYERNORM, a_column_less},
    {LAYERNORM, b_column_less},
    {HEAD_NORM, a_is_half},
    {HEAD_NORM, heads_do_not_fit},
    {CONVERT, a_row_less},
    {CONVERT, b_column_less},
    {CONVERT, a_is_packed},
    {ADD, a_row_less},
    {ADD, a_column_less},
    {ADD, b_row_less},
    {ADD_NORM, a_row_less},
    {ADD_NORM, c_row_less},
    {ADD, c_row_less},
    {ADD, c_column_less},
    {ADD, c_is_nowhere},
    {ACT_MUL, a_row_less},
    {ACT_MUL, a_column_less},
    {ACT_MUL, a_is_half},
    {ACT_MUL, wide_column_less},
    {ACT_MUL, wide_row_less},
    {ACT_MUL, wide_is_half},
    {ACT, a_is_half},
    {ACT, a_is_nowhere},
    {ACT, a_has_half_rows},
    {ALL_FINITE, a_is_packed},
    {ALL_FINITE, a_is_nowhere},
    {ROPE, a_is_half},
    {ROPE, a_row_less},
    {ROPE, fewer_rows},
    {ROPE, position_behind},
    {ROPE, rotation_is_odd},
    {ROPE, rotation_is_wide},
    {ROPE, rotation_below_0},
    {ROPE, sequences_below_0},
    {ROPE, sequences_begin_later},
    {ROPE, sequences_end_before},
    {KV_FILL, b_row_less},
    {KV_FILL, b_column_less},
    {KV_FILL, b_is_half},
    {KV_FILL, fewer_rows},
    {KV_FILL, position_behind},
    {KV_FILL, rotation_is_odd},
    {KV_FILL, other_heads},
    {KV_FILL, state_is_half},
    {ROPE_KV_FILL, a_row_less},
    {ROPE_KV_FILL, b_column_less},
    {KV_LOAD, begins_inside},
    {KV_LOAD, begins_before},
    {KV_LOAD, ends_behind},
    {KV_LOAD, rotation_is_wide},
    {KV_LOAD, chunks_below_0},
    {KV_READ, b_column_less},
    {KV_READ, fewer_rows},
    {KV_READ, state_is_half},
    {ATTENTION, a_row_less},
    {ATTENTION, b_column_less},
    {ATTENTION, a_is_half},
    {ATTENTION, b_is_half},
    {ATTENTION, fewer_rows},
    {ATTENTION, other_heads},
    {SAMPLE, a_is_half},
    {SAMPLE, draws_1},
    {SAMPLE, draws_below_0},
    {SAMPLE, no_logits},
    {CHECKSUM, first_is_odd},
    {CHECKSUM, stride_is_odd},
    {CHECKSUM, sums_below_0},
};

/* Returns whether the call ends the process by an assertion. */
static bool is_asserted(enum operation op, struct args *x)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        fclose(stderr); /* the assertion's message */
        operate_on(op, x);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Arguments that do not fit together end the process before any memory is touched. Operations never
 * run on a copy stream. */
TEST(test_misuse_is_asserted)
{
    static const char *const names[] = {"ref", "cpu"};
    for (int k = 0; k < 2; k++) {
        lab_open(names[k], NULL);
        weight_open(DTYPE_F32);
        for (size_t i = 0; i < sizeof misuses / sizeof misuses[0]; i++) {
            struct args x = good_args();
            misuses[i].spoil(&x);
            if (!is_asserted(misuses[i].op, &x))
                fail_msg("%s: misuse %zu of operation %d passes", names[k], i,
                         misuses[i].op);
        }
        struct stream *copies;
        assert_int_equal(stream_create(lab.d, STREAM_COPY, &copies, NULL), 0);
        for (int i = 0; i < N_OPERATIONS; i++) {
            struct args x = good_args();
            x.s = copies;
            if (!is_asserted((enum operation)i, &x))
                fail_msg("%s: operation %d runs on a copy stream", names[k], i);
        }
        stream_destroy(copies);
        buf_free(lab.d, &lab.weight.mem);
        stream_destroy(lab.s);
        device_close(lab.d);
    }
}

/* --- file readers ----------------------------------------------------------------------------- */

static char called[64];

static int spy_submit(struct file_reader *r, struct file_read *reads, int n, void *user,
                      struct err *err)
{
    (void)r;
    (void)reads;
    (void)user;
    strcat(called, "submit ");
    return err_set(err, -100 - n, "submitted");
}

static int spy_wait(struct file_reader *r, int64_t timeout_ns, void **user, struct err *err)
{
    (void)r;
    (void)err;
    strcat(called, "wait ");
    *user = called;
    return (int)timeout_ns;
}

static void spy_cancel(struct file_reader *r)
{
    (void)r;
    strcat(called, "cancel ");
}

static void spy_close(struct file_reader *r)
{
    (void)r;
    strcat(called, "close ");
}

static int spy_open(struct device *d, const struct buf *into, int n_batches,
                    struct file_reader **out, struct err *err)
{
    static struct file_reader r = {spy_submit, spy_wait, spy_cancel, spy_close};
    (void)d;
    (void)into;
    *out = &r;
    return n_batches == 3 ? 0 : err_set(err, -EINVAL, "batches");
}

TEST(test_file_readers_pass_calls_on)
{
    struct device *d;
    struct file_reader *r = NULL;
    struct buf into = {0};
    struct file_read read = {0};
    void *user = NULL;
    struct err err = {0};
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    struct device_vtable v = *d->v;
    v.file_reader_open = spy_open;
    d->v = &v;
    assert_int_equal(file_reader_open(d, &into, 2, &r, &err), -EINVAL);
    assert_int_equal(file_reader_open(d, &into, 3, &r, &err), 0);
    assert_int_equal(file_reader_submit(r, &read, 5, NULL, &err), -105);
    assert_int_equal(file_reader_wait(r, 7, &user, &err), 7);
    assert_ptr_equal(user, called);
    file_reader_cancel(r);
    file_reader_close(r);
    file_reader_close(NULL);
    assert_string_equal(called, "submit wait cancel close ");
    device_close(d);
}
