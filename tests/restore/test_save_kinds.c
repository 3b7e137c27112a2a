/* test_save_kinds.c - which kinds of record are saved: by forced letters, as planned, and for
 * restores beside decodes. */

#include "tests/unit.h"
#include <string.h>

#include "restore/save_kinds.h"
#include "save/saver.h"

enum { L = 8, H = PLAN_HAS_H, K = PLAN_HAS_KV, B = H | K };

static struct err e;

static void expect(const char *text, const struct save_kinds_from *from,
                   const uint8_t *want)
{
    uint8_t kinds[L];
    memset(kinds, 0x55, sizeof kinds);
    assert_int_equal(save_kinds_choose(text, from, kinds, &e), 0);
    assert_memory_equal(kinds, want, L);
}

TEST(names_and_letters)
{
    const struct save_kinds_from from = {.n_layers = L, .h_bytes = 2, .kv_bytes = 4};
    uint8_t kinds[L];
    expect("none", &from, (uint8_t[L]){0});
    expect("hidden", &from, (uint8_t[L]){H, H, H, H, H, H, H, H});
    expect("kv", &from, (uint8_t[L]){K, K, K, K, K, K, K, K});
    expect("both", &from, (uint8_t[L]){B, B, B, B, B, B, B, B});
    expect("-HKBHHKK", &from, (uint8_t[L]){0, H, K, B, H, H, K, K});
    assert_int_equal(save_kinds_choose("-HKBHHK", &from, kinds, &e), ERR_USAGE);
    assert_int_equal(save_kinds_choose("-HKBHHKR", &from, kinds, &e), ERR_USAGE);
}

/* Until the store's speed is known, every kind that a best plan might use is saved. */
TEST(an_unknown_store_keeps_every_option)
{
    struct platform no_tier;
    platform_init(&no_tier);
    struct save_kinds_from from = {.n_layers = L, .h_bytes = 2, .kv_bytes = 4};
    expect("auto", &from, (uint8_t[L]){B, B, B, B, B, B, B, B});
    from.platform = &no_tier;
    expect("auto", &from, (uint8_t[L]){B, B, B, B, B, B, B, B});
    from.h_bytes = 4; /* hidden states are no smaller than KV, so they are never better */
    expect("auto", &from, (uint8_t[L]){K, K, K, K, K, K, K, K});
}

/* Makes a platform on which projecting hidden states takes as long as reading them instead of KV
 * saves. */
static struct platform balanced(void)
{
    struct platform p;
    platform_init(&p);
    p.n_layers = L;
    p.h_bytes = 1000;
    p.kv_bytes = 2000;
    p.c_tok.b_s = 1e-3;
    p.c_h.b_s = 1e-6;
    p.c_kv.b_s = 1e-8;
    p.n_tiers = 1;
    p.tier[0].bytes_per_s = 5e8;
    return p;
}

/* Packed state is bf16. */
static struct save_kinds_from from_of(const struct platform *p, int64_t max_tokens)
{
    return (struct save_kinds_from){.n_layers = L,
                                    .h_bytes = 1000,
                                    .kv_bytes = 2000,
                                    .platform = p,
                                    .pack_share = SAVE_PACK_SHARE(PACK_BF16),
                                    .max_tokens = max_tokens};
}

static int count(const uint8_t *kinds, uint8_t bit)
{
    int n = 0;
    for (int l = 0; l < L; l++)
        n += (kinds[l] & bit) != 0;
    return n;
}

TEST(plans_that_have_less_compute_want_kv)
{
    struct platform p = balanced();
    const struct save_kinds_from from = from_of(&p, 4096);
    uint8_t alone[L], both[L];
    assert_int_equal(save_kinds_choose("auto", &from, alone, &e), 0);
    assert_true(count(alone, H) >= L - 2); /* layer 0 needs no record */
    assert_true(count(alone, K) <= 1);
    memcpy(both, alone, sizeof both);
    assert_int_equal(save_kinds_add_beside("auto", &from, both, &e), 0);
    /* no record of hidden states is removed */
    assert_int_equal(count(both, H), count(alone, H));
    assert_true(count(both, K) >= L - 1);
    assert_true(p.gemm_correction.log2 == 0); /* the platform itself stays unchanged */
    /* A kind that the options name is not changed. */
    uint8_t kv[L] = {K, K, K, K, K, K, K, K};
    assert_int_equal(save_kinds_add_beside("kv", &from, kv, &e), 0);
    assert_int_equal(count(kv, H), 0);
}

/* The kinds suit plans of short contexts and of the longest one, each with its own best letters. */
TEST(growth_is_planned_for)
{
    struct platform p = balanced();
    /* projecting has a high fixed cost, so it is expensive for few tokens */
    p.c_h = (struct cost_curve){.a_s = 1e-2, .b_s = 1e-7};
    p.c_kv.b_s = 0;
    struct save_kinds_from from = from_of(&p, 512);
    uint8_t kinds[L];
    assert_int_equal(save_kinds_choose("auto", &from, kinds, &e), 0);
    assert_true(count(kinds, K) >= L - 1 && count(kinds, H) <= 1);
    from.max_tokens = 1 << 20;
    assert_int_equal(save_kinds_choose("auto", &from, kinds, &e), 0);
    assert_true(count(kinds, K) >= L - 1 && count(kinds, H) >= L - 2);
    from.max_tokens = 100; /* shorter than the shortest length that is considered */
    assert_int_equal(save_kinds_choose("auto", &from, kinds, &e), 0);
    assert_true(count(kinds, H) <= 1);
}

TEST(a_chunk_suffices_with_all_wanted_records)
{
    const uint8_t wanted[3] = {H, 0, B};
    assert_true(save_kinds_suffice(wanted, (uint8_t[3]){H, 0, B}, 3));
    assert_true(save_kinds_suffice(wanted, (uint8_t[3]){B, K, B}, 3));
    assert_false(save_kinds_suffice(wanted, (uint8_t[3]){K, 0, B}, 3));
    assert_false(save_kinds_suffice(wanted, (uint8_t[3]){H, 0, H}, 3));
    assert_true(save_kinds_suffice(wanted, (uint8_t[3]){H, 0, 0}, 2));
}

/* A partial chunk is continued only if it has all wanted records. Full chunks are used with the
 * records that they have. */
TEST(a_partial_chunk_is_used_with_all_wanted_records)
{
    const uint8_t wanted[2] = {H, K}, has_all[2] = {B, K}, lacks[2] = {H, H};
    struct save_kinds_found f = {.n_chunks = 3, .has_partial = true, .stored = has_all};
    assert_int_equal(save_kinds_usable(&f, wanted, 2), 3);
    f.stored = lacks;
    assert_int_equal(save_kinds_usable(&f, wanted, 2), 2);
    /* layer 0 alone has its wanted record */
    assert_int_equal(save_kinds_usable(&f, wanted, 1), 3);
    /* nothing is to be saved, so every chunk is usable */
    assert_int_equal(save_kinds_usable(&f, NULL, 2), 3);
    f.has_partial = false;
    assert_int_equal(save_kinds_usable(&f, wanted, 2), 3);
    f = (struct save_kinds_found){.n_chunks = 1, .has_partial = true, .stored = lacks};
    assert_int_equal(save_kinds_usable(&f, wanted, 2), 0);
    f.n_chunks = 0;
    assert_int_equal(save_kinds_usable(&f, wanted, 2), 0);
}

/* Plans for the longest context count, even if no shorter length wants a record. */
TEST(the_longest_context_is_planned_for)
{
    struct platform p = balanced();
    p.c_tok = (struct cost_curve){.c_s = 1e-9};
    p.c_h.b_s = p.c_kv.b_s = 1e-9;
    /* Of 2048 tokens, reading hidden states takes as long as computing ten layers; of 4096, as
     * long as five. */
    p.tier[0].bytes_per_s = 1000 / (10 * 2048 * 1e-9);
    for (int i = 0; i < 3; i++) {
        const int64_t most[] = {2048, 4096, 4000};
        uint8_t kinds[L];
        const struct save_kinds_from from = from_of(&p, most[i]);
        assert_int_equal(save_kinds_choose("auto", &from, kinds, &e), 0);
        assert_int_equal(count(kinds, B) > 0, i > 0);
    }
}

/* State is packed where the disk is the bottleneck of its restores, or neither lane loses by it;
 * not where unpacking would make them longer, nor while a speed is unknown. */
TEST(state_is_packed_where_restores_lose_nothing)
{
    static const struct {
        double unpack, disk, tok_s, h_s;
        bool has_copies, packs;
        uint8_t saved;
    } cases[] = {
        /* hidden states alone would have to be projected, which takes longer than reading */
        {4e9, 1e9, 1, 1e-6, false, false, H},
        {4e9, 1e9, 1, 1e-6, false, true, K},
        {4e9, 5e8, 1e-3, 1, false, true, B},  /* the disk is slow */
        {4e8, 4e9, 1e-3, 1, false, false, B}, /* unpacking is slower than the disk */
        {1e10, 4e9, 1e-3, 1, false, true, B},
        {0, 5e8, 1e-3, 1, false, false, B},       /* not measured */
        {4e8, 4e9, 1e-10, 1e-10, false, true, B}, /* all is computed again, packed or not */
    };
    struct platform p = balanced();
    struct save_kinds_from from = from_of(&p, 10000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p.unpack_bytes_per_s = cases[i].unpack;
        p.tier[0].bytes_per_s = cases[i].disk;
        p.c_tok.b_s = cases[i].tok_s;
        p.c_h.b_s = cases[i].h_s;
        from.has_copies = cases[i].has_copies;
        from.saved = cases[i].saved;
        assert_int_equal(save_kinds_pack(&from), cases[i].packs);
    }
    p.n_tiers = 0;
    assert_false(save_kinds_pack(&from));
    from.platform = NULL;
    assert_false(save_kinds_pack(&from));
}

/* Longer contexts count, too: for these, layers are read that short ones compute. */
TEST(every_length_decides_about_packing)
{
    struct platform p = balanced();
    p.c_h.b_s = 1e-10;
    p.c_tok = (struct cost_curve){.c_s = 1e-11};
    p.tier[0].bytes_per_s = 4e9;
    p.unpack_bytes_per_s = 4e8;
    struct save_kinds_from from = from_of(&p, 512);
    assert_true(save_kinds_pack(&from));
    from.max_tokens = 1 << 20;
    assert_false(save_kinds_pack(&from));
}
