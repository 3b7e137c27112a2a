/* test_save_policy.c - which kinds of state are written: given by a name, by letters, or chosen
 * from plans. */
#include <string.h>

#include "tests/unit.h"
#include "restore/save_policy.h"
#include "tests/engine/enginetest.h"

static struct model shaped(int n_embd, int n_kv, int d_head)
{
    struct model m = {.dtype = DTYPE_BF16};
    m.cfg.n_layers = 8;
    m.cfg.n_embd = n_embd;
    m.cfg.n_kv_heads = n_kv;
    m.cfg.d_head = d_head;
    return m;
}

static struct platform platform_of(const struct model *m)
{
    struct platform p;
    platform_init(&p);
    p.n_layers = m->cfg.n_layers;
    p.h_bytes = (double)model_hidden_bytes(m);
    p.kv_bytes = (double)model_kv_bytes(m, 0);
    return p;
}

/* Returns the kinds of all layers as letters. */
static const char *letters_of(const struct save_policy *p, int n)
{
    static char text[STORE_MAX_LAYERS + 1];
    for (int l = 0; l < n; l++)
        text[l] = "-HKB"[p->kinds[l]];
    text[n] = 0;
    return text;
}

TEST(names_and_letters)
{
    static const struct {
        const char *text, *want;
    } good[] = {{"none", "--------"},    {"hidden", "HHHHHHHH"},   {"kv", "KKKKKKKK"},
                {"both", "BBBBBBBB"},    {"-HKBBKH-", "-HKBBKH-"}, {"--------", "--------"},
                {"HHHHHHHH", "HHHHHHHH"}};
    static const char *const bad[] = {"",         "kvs",      "HKB",  "HKBHKBHKB",
                                      "hkhkhkhk", "HHHHHHHR", "Both", "       K"};
    struct model m = shaped(64, 4, 16);
    struct save_policy p;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(save_policy_make(&p, good[i].text, &m, NULL, 1000, NULL), 0);
        assert_string_equal(letters_of(&p, 8), good[i].want);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        assert_int_equal(save_policy_make(&p, bad[i], &m, NULL, 1000, &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, "--save"));
    }
}

/* Without a profile of the store, every kind is saved that the best plan might use. */
TEST(automatic_without_a_profile)
{
    struct save_policy p;
    struct model mha = shaped(64, 4, 16), gqa = shaped(128, 2, 16);
    struct platform none = platform_of(&mha);
    assert_int_equal(save_policy_make(&p, "auto", &mha, NULL, 1000, NULL), 0);
    assert_string_equal(letters_of(&p, 8), "BBBBBBBB");
    assert_int_equal(save_policy_make(&p, "auto", &mha, &none, 1000, NULL), 0);
    assert_string_equal(letters_of(&p, 8), "BBBBBBBB");
    assert_int_equal(save_policy_make(&p, "auto", &gqa, NULL, 1000, NULL), 0);
    assert_string_equal(letters_of(&p, 8),
                        "KKKKKKKK"); /* hidden states would be twice as large as K and V */
}

static struct save_policy automatic(const struct model *m, double tok, double h, double kv,
                                    double bytes_per_s, int64_t max_tokens)
{
    struct save_policy p;
    struct platform f = platform_of(m);
    et_platform(&f, tok, h, kv, bytes_per_s);
    struct err err = {0};
    if (save_policy_make(&p, "auto", m, &f, max_tokens, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

/* The option decides about packing. auto asks the profile. */
TEST(packing)
{
    struct model m = shaped(1024, 16, 64);
    struct platform f = platform_of(&m);
    et_platform(&f, 1e-3, 1e-4, 1e-9, 1e8);
    f.unpack_bytes_per_s = 4e9;
    assert_true(save_policy_packs("auto", "both", &m, &f, 4096, false));
    assert_true(save_policy_packs("on", "both", &m, NULL, 4096, false));
    assert_false(save_policy_packs("off", "both", &m, &f, 4096, false));
    assert_false(save_policy_packs(NULL, "both", &m, &f, 4096, false));
    /* Copies in DRAM have to be unpacked: the disk must win more than that. f16 numbers have more
     * mantissa, which does not get smaller. */
    f.unpack_bytes_per_s = 5e8;
    assert_true(save_policy_packs("auto", "kv", &m, &f, 4096, true));
    m.dtype = DTYPE_F16;
    assert_false(save_policy_packs("auto", "kv", &m, &f, 4096, true));
    f.unpack_bytes_per_s = 1e7;
    assert_false(save_policy_packs("auto", "both", &m, &f, 4096, false));
    m.dtype = DTYPE_F32;
    assert_true(save_policy_packs("on", "both", &m, NULL, 4096, false));
}

/* With a profile, the kinds are saved that the plans read. Layer 0 is recomputed at no extra cost,
 * so nothing is written for it. */
TEST(automatic_by_plan)
{
    struct model mha = shaped(1024, 16, 64);
    /* The store is so fast that loading beats every computation. */
    struct save_policy p = automatic(&mha, 1e-3, 1e-4, 1e-9, 1e12, 4096);
    for (int l = 1; l < 8; l++)
        assert_true(p.kinds[l] & SAVE_KV);
    /* The store is slow and the processor is fast: saving does not pay. */
    p = automatic(&mha, 1e-9, 1e-10, 1e-10, 1e3, 4096);
    for (int l = 0; l < 8; l++)
        assert_int_equal(p.kinds[l], 0);
    /* With speeds in between, halving the bytes is worth a projection. */
    p = automatic(&mha, 1e-3, 1e-7, 1e-7, 1e8, 4096);
    int n_hidden = 0;
    for (int l = 0; l < 8; l++)
        n_hidden += (p.kinds[l] & SAVE_HIDDEN) != 0;
    assert_true(n_hidden > 0);
    /* Contexts of one chunk, and empty contexts, still give a policy. */
    (void)automatic(&mha, 1e-3, 1e-4, 1e-9, 1e12, 64);
    (void)automatic(&mha, 1e-3, 1e-4, 1e-9, 1e12, 1);
}

/* Recomputing grows faster than reading, so what is saved depends on the longest context. */
TEST(the_longest_context_counts)
{
    struct model mha = shaped(1024, 16, 64);
    struct platform f = platform_of(&mha);
    /* Reading the hidden states of 512 tokens takes as long as computing ten layers. */
    et_platform(&f, 0, 1e-9, 1e-9, 4e8);
    f.c_tok.c_s = 1e-9;
    for (int i = 0; i < 2; i++) {
        struct save_policy p;
        int n_saved = 0;
        assert_int_equal(save_policy_make(&p, "auto", &mha, &f, i == 0 ? 512 : 4096, NULL),
                         0);
        for (int l = 0; l < 8; l++)
            n_saved += p.kinds[l] != 0;
        assert_int_equal(n_saved > 0, i == 1);
    }
}

/* When decodes leave restores only a share of the compute, projections do not pay any more. */
TEST(automatic_beside_decodes)
{
    struct model m = shaped(1024, 16, 64);
    struct platform f = platform_of(&m);
    struct save_policy p;
    et_platform(&f, 1e-3, 2e-6, 1e-9, 1e9);
    assert_int_equal(save_policy_make(&p, "auto", &m, &f, 4096, NULL), 0);
    int n_hidden = 0, n_kv = 0;
    for (int l = 0; l < 8; l++)
        n_hidden += (p.kinds[l] & SAVE_HIDDEN) != 0;
    assert_true(n_hidden > 0);
    platform_slow_compute(&f, 33);
    assert_int_equal(save_policy_make(&p, "auto", &m, &f, 4096, NULL), 0);
    for (int l = 1; l < 8; l++)
        n_kv += p.kinds[l] == SAVE_KV;
    assert_int_equal(n_kv, 7);
}

/* With more layers than the store supports nothing is saved, and no array is overrun. */
TEST(too_many_layers)
{
    struct save_policy p;
    struct model m = shaped(64, 4, 16);
    m.cfg.n_layers = 200;
    static const char *const texts[] = {"both", "auto", "none"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(save_policy_make(&p, texts[i], &m, NULL, 1000, NULL), 0);
        for (int l = 0; l < STORE_MAX_LAYERS; l++)
            assert_int_equal(p.kinds[l], 0);
    }
}
