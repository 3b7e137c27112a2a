/* test_matrix_types.c - the type in which each matrix is held, for a table of files with 4-bit
 * tensors. */
#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/gguf_types.h"
#include "model/config_family.h"
#include "model/matrix_types.h"

/* Returns a letter for each type: 0 q4_0, 1 q4_1, K q4_K, 6 q6_K, 8 q8. */
static char letter_of(enum dtype t)
{
    return t == DTYPE_Q4_0   ? '0'
           : t == DTYPE_Q4_1 ? '1'
           : t == DTYPE_Q4_K ? 'K'
           : t == DTYPE_Q6_K ? '6'
           : t == DTYPE_Q8   ? '8'
                             : '?';
}

static const struct gguf_type *type_of(char letter)
{
    static const struct {
        char letter;
        uint32_t type;
    } types[] = {{'0', GGUF_TYPE_Q4_0}, {'1', GGUF_TYPE_Q4_1}, {'K', GGUF_TYPE_Q4_K},
                 {'6', GGUF_TYPE_Q6_K}, {'8', GGUF_TYPE_Q8_0}, {'5', GGUF_TYPE_Q5_K}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].letter == letter)
            return gguf_type(types[i].type);
    return NULL;
}

/* A model of two layers with heads of 64 columns: 512 columns, 8 heads, 2 heads of K and V. */
static struct model_config config_of(enum model_family family)
{
    struct model_config c = {0};
    config_family_init(&c, family);
    c.n_layers = 2;
    c.n_embd = 512;
    c.n_heads = 8;
    c.n_kv_heads = 2;
    c.d_head = 64;
    c.n_ffn = 1024;
    c.vocab_size = 1000;
    c.max_ctx = 64;
    c.tie_word_embeddings = false;
    return c;
}

/* The matrices of a layer, in the order of the letters that the table has for them. */
static const enum slot layer_slots[] = {SLOT_WQ, SLOT_WKV, SLOT_WV,
                                        SLOT_WO, SLOT_UP,  SLOT_DOWN};
enum { N_LAYER_SLOTS = sizeof layer_slots / sizeof layer_slots[0] };

/* Makes the set of a model whose tensors have the types of `types`, one letter for each matrix of
 * the checkpoint in its order: those of layer 0, those of layer 1, the head. */
static void set_make(struct tensor_set *set, const struct model_config *c,
                     const char *types)
{
    *set = (struct tensor_set){0};
    tensor_list_make(&set->list, c);
    set->src = xcalloc(set->list.n, sizeof *set->src);
    for (size_t i = 0; i < set->list.n; i++) {
        enum slot s = set->list.items[i].parts[0].slot;
        if (!slot_is_matrix(s))
            continue;
        assert_true(*types != 0);
        set->src[i].type = type_of(*types++);
    }
    assert_int_equal(*types, 0);
}

static void set_free(struct tensor_set *set)
{
    tensor_list_free(&set->list);
    free(set->src);
}

struct row {
    enum model_family family;
    const char *file; /* letters of the file's matrices */
    const char
        *want; /* letters of each layer's matrices q, k, v, o, up, down; and of the head */
};

static const struct row rows[] = {
    /* llama: q k v o gate up down of each layer, and the head */
    {FAMILY_LLAMA, "000000000000000", "000000 000000 0"},
    {FAMILY_LLAMA, "1111111KKKKKKK6", "111111 KKKKKK 6"},
    /* Q4_K_M has V and down in 6 bits in half of its layers */
    {FAMILY_LLAMA, "KK6KKK6KKKKKKK6", "KK6KK6 KKKKKK 6"},
    /* gate and up are one matrix */
    {FAMILY_LLAMA, "KKKKK6KKKKK6KKK", "KKKK8K KKKK8K K"},
    /* a tensor that has no 4-bit type is held in q8 beside others that have one */
    {FAMILY_LLAMA, "-0000000508000-", "800000 080800 8"},
    /* a file without 4-bit tensors is converted, but for its head */
    {FAMILY_LLAMA, "-------88888888", "111111 111111 8"},
    /* phi3: q, k and v are one tensor, gate and up another */
    {FAMILY_PHI3, "K06K1K0K0", "KKK06K 111K0K 0"},
    /* falcon: one tensor of groups; the MLP has no gate */
    {FAMILY_FALCON, "K0610K168", "KKK061 000K16 8"},
};

TEST(each_matrix_has_its_type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        struct model_config c = config_of(row->family);
        struct tensor_set set;
        struct matrix_types t;
        char got[32];
        size_t n = 0;
        set_make(&set, &c, row->file);
        matrix_types_make(&t, DTYPE_Q4, &set, &c);
        for (int l = 0; l < c.n_layers; l++) {
            for (int k = 0; k < N_LAYER_SLOTS; k++)
                got[n++] = letter_of(matrix_type(&t, l, layer_slots[k]));
            got[n++] = ' ';
        }
        got[n++] = letter_of(matrix_type(&t, 0, SLOT_HEAD));
        got[n] = 0;
        if (strcmp(got, row->want) != 0)
            fail_msg("file %s: %s, not %s", row->file, got, row->want);
        assert_int_equal(matrix_types_any_q4(&set), strpbrk(row->file, "01K6") != NULL);
        assert_true(matrix_types_fit(&t, &c));
        matrix_types_deinit(&t);
        set_free(&set);
    }
}

/* W_k and W_v are one matrix where they have one type. */
TEST(rows_of_k_and_v)
{
    struct model_config c = config_of(FAMILY_LLAMA);
    struct tensor_set set;
    struct matrix_types t;
    set_make(&set, &c, "KK6KKKKKKKKKKKK");
    matrix_types_make(&t, DTYPE_Q4, &set, &c);
    assert_true(matrix_types_differ_in_kv(&t, 0));
    assert_false(matrix_types_differ_in_kv(&t, 1));
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        assert_int_equal(matrix_rows(&t, &c, 0, SLOT_WKV, n_ranks), 128 / n_ranks);
        assert_int_equal(matrix_rows(&t, &c, 0, SLOT_WV, n_ranks), 128 / n_ranks);
        assert_int_equal(matrix_rows(&t, &c, 1, SLOT_WKV, n_ranks), 256 / n_ranks);
        assert_int_equal(matrix_rows(&t, &c, 1, SLOT_WV, n_ranks), 0);
        assert_int_equal(matrix_rows(&t, &c, 0, SLOT_WQ, n_ranks), 512 / n_ranks);
        assert_int_equal(matrix_rows(&t, &c, 0, SLOT_DOWN, n_ranks), 512 / n_ranks);
    }
    matrix_types_deinit(&t);
    set_free(&set);
    matrix_types_init(&t, DTYPE_BF16, 2);
    assert_false(matrix_types_differ_in_kv(&t, 0));
    assert_int_equal(matrix_type(&t, 1, SLOT_WV), DTYPE_BF16);
    assert_true(matrix_types_fit(&t, &c));
}

/* A packed file may hold types whose blocks do not fit its rows. */
TEST(types_that_do_not_fit)
{
    struct model_config c = config_of(FAMILY_LLAMA);
    c.n_embd = 200; /* no whole block */
    struct matrix_types t;
    matrix_types_init(&t, DTYPE_Q4, 2);
    t.head = DTYPE_Q4_0;
    assert_false(matrix_types_fit(&t, &c));
    matrix_types_deinit(&t);
}
