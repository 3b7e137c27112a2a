/* test_gguf_tokenizer.c - tokenizers in GGUF metadata: tokens by type, the steps of each
 * pre-tokenizer, what is put around a text, and refusals by name. */
#include "text/gguf_tokenizer.h"

#include "base/bytes.h"
#include "tests/model/gguf_bytes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* --- making files ------------------------------------------------------------------------- */

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

#define KEY(NAME) "tokenizer.ggml." NAME

static void add_key(struct gguf_bytes *f, const char *key, uint32_t type)
{
    add_text(f, key);
    add_u32(f, type);
    f->n_values++;
}

static void add_string(struct gguf_bytes *f, const char *key, const char *s)
{
    add_key(f, key, STRING);
    add_text(f, s);
}

static void add_bool(struct gguf_bytes *f, const char *key, bool v)
{
    add_key(f, key, BOOL);
    f->bytes[f->n++] = v;
}

static void add_id(struct gguf_bytes *f, const char *key, uint32_t v)
{
    add_key(f, key, U32);
    add_u32(f, v);
}

static void add_array(struct gguf_bytes *f, const char *key, uint32_t type, uint64_t n)
{
    add_key(f, key, ARRAY);
    add_u32(f, type);
    add_u64(f, n);
}

static void add_strings(struct gguf_bytes *f, const char *key, const char *const *s, int n)
{
    add_array(f, key, STRING, (uint64_t)n);
    for (int i = 0; i < n; i++)
        add_text(f, s[i]);
}

static void begin(struct gguf_bytes *f)
{
    memset(f, 0, sizeof *f);
    memcpy(f->bytes, "GGUF", 4);
    f->n = 4;
    add_u32(f, 3);
    add_u64(f, 0);
    add_u64(f, 0);
}

/* Reads the tokenizer of a file. The caller calls tokenizer_json_deinit. */
static int read_file(struct gguf_bytes *f, struct tokenizer_json *t, struct err *err)
{
    struct gguf g;
    put_u64(f->bytes + 16, f->n_values);
    if (gguf_parse(&g, f->bytes, f->n, f->n, "f.gguf", err) != 0)
        fail_msg("%s", err->msg);
    int rc = gguf_tokenizer_read(t, &g, "f.gguf", err);
    gguf_deinit(&g);
    return rc;
}

enum { N_TOKENS = 8 };

static const char *const tokens[N_TOKENS] = {"a",    "b",    "ab", "<s>",
                                             "</s>", "user", "",   "ba"};
static const uint32_t types[N_TOKENS] = {1, 1, 1, 3, 3, 4, 5, 5};

static void add_vocabulary(struct gguf_bytes *f, const char *model)
{
    add_string(f, KEY("model"), model);
    add_strings(f, KEY("tokens"), tokens, N_TOKENS);
    add_array(f, KEY("token_type"), I32, N_TOKENS);
    for (int i = 0; i < N_TOKENS; i++)
        add_u32(f, types[i]);
}

static void begin_gpt2(struct gguf_bytes *f, const char *pre)
{
    static const char *const merges[] = {"a b", "b a"};
    begin(f);
    add_vocabulary(f, "gpt2");
    add_strings(f, KEY("merges"), merges, 2);
    if (pre != NULL)
        add_string(f, KEY("pre"), pre);
}

/* The scores of the first n tokens. */
static void add_scores(struct gguf_bytes *f, int n)
{
    add_array(f, KEY("scores"), F32, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        float score = -1.5f * (float)i;
        memcpy(f->bytes + f->n, &score, 4);
        f->n += 4;
    }
}

static void begin_llama(struct gguf_bytes *f)
{
    begin(f);
    add_vocabulary(f, "llama");
    add_scores(f, N_TOKENS);
}

/* --- byte-level BPE ------------------------------------------------------------------------- */

/* Each name of a pre-tokenizer has its steps. s: a pattern; b: bytes; B: GPT-2's pattern, then
 * bytes; d: digits one by one; D: runs of digits; p: runs of punctuation. */
TEST(a_pre_tokenizer_has_its_steps)
{
    static const struct {
        const char *name, *steps;
        bool ignores_merges, adds_bos, nfc;
    } rows[] = {
        {"gpt-2", "B", false, false, false},
        {"phi-2", "B", false, false, false},
        {"olmo", "B", false, false, false},
        {"smollm", "dB", false, false, false},
        {"starcoder", "dB", false, false, false},
        {"refact", "dB", false, false, false},
        {"command-r", "dB", false, false, false},
        {"codeshell", "dB", false, false, false},
        {"minerva-7b", "dB", false, false, false},
        {"falcon", "pBDs", false, false, false},
        {"deepseek-coder", "sssssb", false, false, false},
        {"llama-bpe", "sb", true, true, false},
        {"llama3", "sb", true, true, false},
        {"llama-v3", "sb", true, true, false},
        {"falcon3", "sb", true, true, false},
        {"pixtral", "sb", true, true, false},
        {"dbrx", "sb", false, false, false},
        {"smaug-bpe", "sb", false, false, false},
        {"qwen2", "sb", false, false, true},
        {"qwen35", "sb", false, false, true},
        {"deepseek-r1-qwen", "sb", false, false, false},
        {"megrez", "sb", false, false, false},
        {"stablelm2", "sb", false, false, false},
        {"tekken", "sb", true, true, false},
        {"gpt-4o", "sb", false, false, false},
    };
    static struct gguf_bytes f;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tokenizer_json t;
        struct err err = {0};
        char steps[TOKENIZER_MAX_STEPS + 1] = "";
        begin_gpt2(&f, rows[i].name);
        add_id(&f, KEY("bos_token_id"), 3);
        assert_int_equal(read_file(&f, &t, &err), 0);
        for (int k = 0; k < t.n_pretokenizers; k++) {
            const struct pretokenizer_step *s = &t.pretokenizers[k];
            bool splits = s->kind == PRETOKENIZER_SPLIT && s->is_regex &&
                          s->pattern.n > 0 && s->behavior == SPLIT_ISOLATED;
            bool runs = s->kind == PRETOKENIZER_PUNCTUATION &&
                        s->behavior == SPLIT_CONTIGUOUS;
            assert_true(!splits || s->pattern.n == strlen(s->pattern.s));
            steps[k] = splits                               ? 's'
                       : runs                               ? 'p'
                       : s->kind == PRETOKENIZER_BYTE_LEVEL ? (s->use_regex ? 'B' : 'b')
                       : s->kind == PRETOKENIZER_DIGITS     ? (s->individual ? 'd' : 'D')
                                                            : '?';
        }
        assert_string_equal(steps, rows[i].steps);
        assert_int_equal(t.ignore_merges, rows[i].ignores_merges);
        assert_int_equal(t.n_prefix, rows[i].adds_bos);
        assert_int_equal(t.n_normalizers, rows[i].nfc);
        assert_true(!rows[i].nfc || t.normalizers[0].kind == NORMALIZER_NFC);
        assert_int_equal(t.n_decoders, 1);
        assert_int_equal(t.decoders[0].kind, DECODER_BYTE_LEVEL);
        assert_int_equal(t.n_merges, 2);
        assert_null(t.scores);
        tokenizer_json_deinit(&t);
    }
}

/* Control tokens are special, and a user's text never becomes them. Tokens that a user defines are
 * matched in text. Unused ones and bytes are neither matched nor made. */
TEST(tokens_have_the_rights_of_their_type)
{
    static struct gguf_bytes f;
    struct tokenizer_json t;
    struct err err = {0};
    begin_gpt2(&f, "gpt-2");
    assert_int_equal(read_file(&f, &t, &err), 0);
    assert_int_equal(t.n_ids, N_TOKENS);
    assert_int_equal(tokenizer_json_find(&t, "ab", 2), 2);
    assert_int_equal(t.n_added, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.added[i].id, 3 + i);
        assert_int_equal(t.added[i].special, i < 2);
        assert_false(t.added[i].rstrip);
    }
    for (int i = 0; i < N_TOKENS; i++)
        assert_int_equal(t.reserved[i], i >= 6);
    assert_null(t.tokens[6].s); /* an id without a token */
    assert_int_equal(t.unk_id, -1);
    assert_true(t.has_template);
    assert_int_equal(t.n_prefix + t.n_suffix, 0);
    tokenizer_json_deinit(&t);
}

/* Special tokens of Phi-3 absorb the blanks after them, but not those that begin or end texts. */
TEST(the_special_tokens_of_phi3_absorb_blanks)
{
    static const char *const names[] = {"Phi-3 mini", "my PHI3", "phi-2"};
    static struct gguf_bytes f;
    for (int i = 0; i < 3; i++) {
        struct tokenizer_json t;
        struct err err = {0};
        begin_gpt2(&f, "gpt-2");
        add_string(&f, "general.name", names[i]);
        assert_int_equal(read_file(&f, &t, &err), 0);
        assert_false(t.added[0].rstrip); /* <s> */
        assert_int_equal(t.added[1].rstrip, i < 2);
        assert_int_equal(t.added[2].rstrip, i < 2);
        tokenizer_json_deinit(&t);
    }
}

/* Two switches decide which tokens are put around a text. A token that the file lacks is left
 * out. */
TEST(switches_decide_what_is_around_a_text)
{
    static struct gguf_bytes f;
    for (int i = 0; i < 48; i++) {
        bool wants_bos = i & 1, wants_eos = i & 2, has_bos = i & 4, has_eos = i & 8;
        struct tokenizer_json t;
        struct err err = {0};
        begin_gpt2(&f, "gpt-2");
        add_bool(&f, KEY("add_bos_token"), wants_bos);
        add_bool(&f, KEY("add_eos_token"), wants_eos);
        uint32_t bos = i % 3 == 0 ? 0 : 3, eos = i % 3 == 1 ? 0 : 4;
        if (has_bos)
            add_id(&f, KEY("bos_token_id"), bos);
        if (has_eos)
            add_id(&f, KEY("eos_token_id"), eos);
        assert_int_equal(read_file(&f, &t, &err), 0);
        assert_int_equal(t.n_prefix, wants_bos && has_bos);
        assert_int_equal(t.n_suffix, wants_eos && has_eos);
        assert_true(t.n_prefix == 0 || t.prefix[0] == (int32_t)bos);
        assert_true(t.n_suffix == 0 || t.suffix[0] == (int32_t)eos);
        tokenizer_json_deinit(&t);
    }
}

/* --- SentencePiece's BPE -------------------------------------------------------------------- */

TEST(a_llama_tokenizer_has_scores_and_blanks)
{
    static struct gguf_bytes f;
    for (int prefix = 0; prefix < 2; prefix++) {
        struct tokenizer_json t;
        struct err err = {0};
        begin_llama(&f);
        add_bool(&f, KEY("add_space_prefix"), prefix);
        add_id(&f, KEY("bos_token_id"), 3);
        add_id(&f, KEY("unknown_token_id"), 5);
        assert_int_equal(read_file(&f, &t, &err), 0);
        for (int i = 0; i < N_TOKENS; i++)
            assert_true(t.scores[i] == -1.5f * (float)i);
        assert_int_equal(t.n_merges, 0);
        assert_int_equal(t.unk_id, 5);
        assert_true(t.fuse_unk && !t.byte_fallback);
        /* the file has no switch, so BOS is put in front */
        assert_int_equal(t.n_prefix, 1);
        assert_int_equal(t.n_normalizers, 1 + prefix);
        assert_int_equal(t.normalizers[0].kind,
                         prefix ? NORMALIZER_PREPEND : NORMALIZER_REPLACE);
        assert_int_equal(t.normalizers[prefix].kind, NORMALIZER_REPLACE);
        assert_int_equal(t.n_decoders, 2 + prefix);
        assert_int_equal(t.decoders[0].kind, DECODER_REPLACE);
        assert_int_equal(t.decoders[1].kind, DECODER_FUSE);
        if (prefix) {
            assert_int_equal(t.decoders[2].kind, DECODER_STRIP);
            assert_int_equal(t.decoders[2].start, 1);
        }
        tokenizer_json_deinit(&t);
    }
}

/* With a token for each of the 256 bytes, unknown text becomes bytes. */
TEST(all_bytes_are_a_fallback)
{
    static struct gguf_bytes f;
    for (int missing = 0; missing < 2; missing++) {
        struct tokenizer_json t;
        struct err err = {0};
        begin(&f);
        add_string(&f, KEY("model"), "llama");
        add_array(&f, KEY("tokens"), STRING, 256);
        for (int i = 0; i < 256; i++) {
            char name[8];
            snprintf(name, sizeof name, missing && i == 255 ? "x" : "<0x%02X>", i);
            add_text(&f, name);
        }
        add_scores(&f, 256);
        assert_int_equal(read_file(&f, &t, &err), 0);
        assert_int_equal(t.byte_fallback, !missing);
        assert_int_equal(t.n_decoders, missing ? 3 : 4);
        assert_int_equal(t.decoders[1].kind,
                         missing ? DECODER_FUSE : DECODER_BYTE_FALLBACK);
        tokenizer_json_deinit(&t);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

enum bad {
    NO_MODEL,
    NO_VOCABULARY,
    OTHER_MODEL,
    NO_PRE,
    OTHER_PRE,
    SPACE_PREFIX,
    NO_MERGES,
    NO_TOKENS,
    TWICE,
    NOT_UTF8,
    BOS_BEHIND,
    BOS_EMPTY,
    NO_BOOL,
    FEW_SCORES,
    SQUEEZES,
    BADS
};

static void make_bad(struct gguf_bytes *f, enum bad bad)
{
    static const char *const twice[] = {"a", "a"}, *const broken[] = {"a", "\xff"};
    begin(f);
    switch (bad) {
    case NO_MODEL:
        break;
    case NO_VOCABULARY:
        add_string(f, KEY("model"), "no_vocab");
        break;
    case OTHER_MODEL:
        add_vocabulary(f, "bert");
        break;
    case NO_PRE:
    case OTHER_PRE:
        begin_gpt2(f, bad == NO_PRE ? NULL : "gpt-3");
        break;
    case SPACE_PREFIX:
        begin_gpt2(f, "gpt-2");
        add_bool(f, KEY("add_space_prefix"), true);
        break;
    case NO_MERGES:
        add_vocabulary(f, "gpt2");
        add_string(f, KEY("pre"), "gpt-2");
        break;
    case NO_TOKENS:
        add_string(f, KEY("model"), "llama");
        add_scores(f, 1);
        break;
    case TWICE:
    case NOT_UTF8:
        add_string(f, KEY("model"), "llama");
        add_strings(f, KEY("tokens"), bad == TWICE ? twice : broken, 2);
        add_scores(f, 2);
        break;
    case BOS_BEHIND:
    case BOS_EMPTY:
        begin_llama(f);
        add_id(f, KEY("bos_token_id"), bad == BOS_BEHIND ? N_TOKENS : 6);
        break;
    case NO_BOOL:
        begin_llama(f);
        add_id(f, KEY("add_bos_token"), 1);
        break;
    case FEW_SCORES:
        add_vocabulary(f, "llama");
        add_scores(f, N_TOKENS - 1);
        break;
    case SQUEEZES:
        begin_llama(f);
        add_bool(f, KEY("remove_extra_whitespaces"), true);
        break;
    case BADS:
        break;
    }
}

TEST(what_is_not_understood_is_refused_by_name)
{
    static const struct {
        int rc;
        const char *says;
    } want[BADS] = {
        [NO_MODEL] = {-ENOENT, "has no tokenizer"},
        [NO_VOCABULARY] = {-ENOENT, "has no tokenizer"},
        [OTHER_MODEL] = {ERR_UNSUPPORTED, "'bert' is not supported; gpt2 and llama are"},
        [NO_PRE] = {ERR_UNSUPPORTED, "supported are gpt-2, phi-2, olmo"},
        [OTHER_PRE] = {ERR_UNSUPPORTED, "'gpt-3' is not supported"},
        [SPACE_PREFIX] = {ERR_UNSUPPORTED, "add_space_prefix"},
        [NO_MERGES] = {ERR_FORMAT, "merges' must be a list of strings"},
        [NO_TOKENS] = {ERR_FORMAT, "tokens' must be a list of 1 to"},
        [TWICE] = {ERR_FORMAT, "'a' is token 0 and 1"},
        [NOT_UTF8] = {ERR_FORMAT, "token 1 is not UTF-8 text"},
        [BOS_BEHIND] = {ERR_FORMAT, "bos_token_id' is none of the 8 tokens"},
        [BOS_EMPTY] = {ERR_FORMAT, "bos_token_id' is none of the 8 tokens"},
        [NO_BOOL] = {ERR_FORMAT, "add_bos_token' must be true or false"},
        [FEW_SCORES] = {ERR_FORMAT, "scores' must have a number for each of 8 tokens"},
        [SQUEEZES] = {ERR_UNSUPPORTED, "remove_extra_whitespaces"},
    };
    static struct gguf_bytes f;
    for (int i = 0; i < BADS; i++) {
        struct tokenizer_json t;
        struct err err = {0};
        make_bad(&f, (enum bad)i);
        int rc = read_file(&f, &t, &err);
        if (rc != want[i].rc || strstr(err.msg, want[i].says) == NULL ||
            strncmp(err.msg, "f.gguf", 6) != 0)
            fail_msg("file %d: got %d: %s", i, rc, err.msg);
        tokenizer_json_deinit(&t);
    }
}

/* A token that ends a turn by its text is a control token, also if the file calls it ordinary text
 * or names no types. */
TEST(an_end_of_turns_is_a_control_token)
{
    static const char *const ends[] = {"<|im_end|>", "<|call|>",  "[EOS]",
                                       "<turn|>",    "</s>",      "<|tool_response>",
                                       "[e~[",       "<|calls|>", "_<EOT>"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        assert_true(token_ends_turn(ends[i], strlen(ends[i])));
    assert_false(token_ends_turn("<|im_end|>x", 11) || token_ends_turn("<|im_end|", 9) ||
                 token_ends_turn("<|im_start|>", 12) || token_ends_turn("", 0));
    static struct gguf_bytes f;
    struct tokenizer_json t;
    struct err err = {0};
    static const char *const texts[] = {"a", "<|im_end|>", "<|im_start|>", "user"};
    for (int typed = 0; typed < 2; typed++) {
        begin(&f);
        add_string(&f, KEY("model"), "llama");
        add_strings(&f, KEY("tokens"), texts, 4);
        add_scores(&f, 4);
        if (typed) {
            add_array(&f, KEY("token_type"), I32, 4);
            for (int i = 0; i < 4; i++)
                add_u32(&f, GGUF_TOKEN_NORMAL);
        }
        assert_int_equal(read_file(&f, &t, &err), 0);
        assert_true(t.n_added == 1 && t.added[0].id == 1 && t.added[0].special);
        tokenizer_json_deinit(&t);
    }
}
