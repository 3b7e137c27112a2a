/* test_failed.c - an operation on a stream that has failed does nothing and returns the failure, on
 * every device. File readers pass calls on. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

/* The result of operation i on the lab's memory; 1 if there is none. */
static int operate(int i)
{
    const struct ops *op = lab.d->ops;
    struct stream *s = lab.s;
    struct mat a = mat_of(lab.a, DTYPE_F32, ROWS, D), b = mat_of(lab.b, DTYPE_F32, ROWS, D);
    struct mat wide = mat_of(lab.b, DTYPE_F32, ROWS, 2 * D);
    struct ragged r = {.n_rows = ROWS,
                       .n_seqs = 1,
                       .pos = lab.pos,
                       .seq_row = lab.seq_row,
                       .tables = lab.tables};
    struct rope rope = {.cos = lab.cos,
                        .sin = lab.sin,
                        .cos_t = lab.cos,
                        .sin_t = lab.sin,
                        .max_pos = ROWS,
                        .d_rot = D_HEAD};
    struct kv_layer kv = {.blocks = lab.block,
                          .block_stride = kv_block_bytes(N_KV, D_HEAD, DTYPE_F32),
                          .dtype = DTYPE_F32,
                          .n_kv = N_KV,
                          .d_head = D_HEAD};
    struct kv_chunks chunks = {
        .first = lab.block, .stride = kv.block_stride, .blocks = lab.blocks, .n = 1};
    struct sample_row rows[ROWS] = {{0}};
    struct product p[2] = {{b, &lab.weight, NULL}, {b, &lab.weight, NULL}};
    uint64_t sum;
    uint32_t n_bytes = 64;
    bool finite;
    switch (i) {
    case 0:
        return op->weight_pack(s, &lab.weight, 0, lab.a, 1);
    case 1:
        return op->weight_rows(s, a, &lab.weight, lab.ids);
    case 2:
        return op->matmul(s, b, a, &lab.weight, NULL);
    case 3:
        return op->matmul_many != NULL ? op->matmul_many(s, a, p, 2) : stream_sync(s);
    case 4:
        return op->embed(s, a, b, lab.ids, 1);
    case 5:
        return op->rmsnorm(s, a, b, lab.w, 1);
    case 6:
        return op->layernorm(s, a, b, lab.w, lab.w, 1);
    case 7:
        return op->head_norm(s, a, D_HEAD, lab.w, 1);
    case 8:
        return op->convert(s, a, b);
    case 9:
        return op->add(s, a, b, b);
    case 10:
        return op->add_norm(s, a, b, b, b, lab.w, NULL, 1);
    case 11:
        return op->act_mul(s, a, wide, ACTIVATION_RELU);
    case 12:
        return op->act(s, a, ACTIVATION_RELU);
    case 13:
        return op->all_finite(s, a, &finite);
    case 14:
        return op->rope(s, a, D_HEAD, &rope, &r);
    case 15:
        return op->kv_fill(s, &kv, b, &rope, &r);
    case 16:
        return op->rope_kv_fill(s, a, &kv, b, &rope, &r);
    case 17:
        return op->kv_load(s, &kv, &chunks, &rope);
    case 18:
        return op->kv_pack(s, lab.block, b, N_KV, D_HEAD);
    case 19:
        return op->kv_read(s, b, &kv, &r);
    case 20:
        return op->attention(s, a, b, &kv, &r, 1, 0);
    case 21:
        return op->sample(s, lab.ids, a, rows);
    case 22:
        return op->checksum(s, &sum, lab.a, 64, &n_bytes, 1);
    default:
        return 1;
    }
}

static void test_operations_return_the_streams_failure(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "cpu"};
    struct pool *pool = NULL;
    assert_int_equal(pool_create(2, &pool, NULL), 0);
    for (int k = 0; k < 2; k++) {
        lab_open(names[k], pool);
        for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16R; t++) {
            weight_open(t);
            for (int i = 0; i <= 22; i++) {
                assert_int_equal(operate(i), 0);
                stream_fail(lab.s, -EIO, "gone");
                if (operate(i) != -EIO)
                    fail_msg("%s, %s: operation %d does not return the failure", names[k],
                             dtype_name(t), i);
                assert_int_equal(stream_recover(lab.s), 0);
            }
            buf_free(lab.d, &lab.weight.mem);
        }
        assert_int_equal(operate(23), 1);
        stream_destroy(lab.s);
        device_close(lab.d);
    }
    pool_destroy(pool);
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

static void test_file_readers_pass_calls_on(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_return_the_streams_failure),
        cmocka_unit_test(test_file_readers_pass_calls_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
