/* tokenizer_decode.c - ids to bytes, as a whole and token by token.
 *
 * When a tokenizer is opened, its decoder steps are compiled into the bytes of each token and into
 * the text that is dropped at the beginning.  Decoding a whole text pushes every id through a
 * stream. */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/textbuf.h"
#include "base/utf8.h"
#include "bpe/bpe_bytes.h"
#include "bpe/tokenizer_normalize.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- compiling the steps ------------------------------------------------------------------ */

static int hex(char c)
{
    return isdigit((unsigned char)c)    ? c - '0'
           : isxdigit((unsigned char)c) ? (c | 32) - 'a' + 10
                                        : -1;
}

/* Returns whether a token like "<0x0A>" stands for one byte. */
static bool is_byte_token(const char *s, size_t n, char *byte)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0)
        return false;
    *byte = (char)(hex(s[3]) << 4 | hex(s[4]));
    return true;
}

static bool is_one_character(const struct tokenizer_text *t)
{
    uint32_t c;
    return t->n > 0 && utf8_decode(t->s, t->n, &c) == t->n;
}

static int unsupported(const char *what, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "decoder: %s is not supported", what);
}

/* Checks the decoder's steps. Decoding token by token requires steps that look at one token only,
 * or at the beginning of the text. */
static int check_steps(const struct tokenizer_json *t, struct err *err)
{
    bool fused = false, stripped = false;
    if (t->n_decoders == 0)
        return unsupported("a tokenizer without one", err);
    for (int i = 0; i < t->n_decoders; i++) {
        const struct decoder_step *s = &t->decoders[i];
        bool alone = s->kind == DECODER_BYTE_LEVEL || s->kind == DECODER_METASPACE;
        if (alone && t->n_decoders > 1)
            return unsupported("ByteLevel or Metaspace among other steps", err);
        if ((s->kind == DECODER_REPLACE || s->kind == DECODER_BYTE_FALLBACK) && fused)
            return unsupported("Replace or ByteFallback behind Fuse", err);
        if (s->kind == DECODER_STRIP &&
            (!fused || stripped || s->stop != 0 || !is_one_character(&s->text)))
            return unsupported(
                "Strip other than of one character at the start, behind Fuse", err);
        stripped |= s->kind == DECODER_STRIP;
        fused |= s->kind == DECODER_FUSE;
    }
    return 0;
}

/* Returns the token's bytes in memory of their own. */
static char *decode_token(const struct tokenizer_json *t, int32_t id, size_t *n)
{
    *n = t->tokens[id].n;
    char *s = xmalloc(2 * *n + 1);
    memcpy(s, t->tokens[id].s, *n);
    for (int i = 0; i < t->n_decoders; i++) {
        const struct decoder_step *step = &t->decoders[i];
        char byte, *old = s;
        static const struct tokenizer_text space = {.s = " ", .n = 1};
        switch (step->kind) {
        case DECODER_REPLACE:
            s = tokenizer_replace(xmalloc, old, *n, &step->pattern, &step->text, n);
            free(old);
            break;
        case DECODER_METASPACE:
            s = tokenizer_replace(xmalloc, old, *n, &step->text, &space, n);
            free(old);
            break;
        case DECODER_BYTE_FALLBACK:
            if (is_byte_token(s, *n, &byte)) {
                s[0] = byte;
                *n = 1;
            }
            break;
        case DECODER_BYTE_LEVEL:
            /* A token with characters outside the byte alphabet stands for its own text. */
            if (!bpe_bytes_from_text(t->tokens[id].s, t->tokens[id].n, s, n))
                memcpy(s, t->tokens[id].s, *n = t->tokens[id].n);
            break;
        case DECODER_FUSE:
        case DECODER_STRIP:
            break;
        }
    }
    return s;
}

static const struct decoder_step *find_step(const struct tokenizer_json *t,
                                            enum decoder_kind kind)
{
    for (int i = 0; i < t->n_decoders; i++)
        if (t->decoders[i].kind == kind)
            return &t->decoders[i];
    return NULL;
}

/* Returns for each id its text if it is an added token: plain text, not byte-level spelling.  The
 * caller frees the array. */
static const struct tokenizer_text **find_kept(const struct tokenizer_json *t)
{
    const struct tokenizer_text **kept = xcalloc((size_t)t->n_ids, sizeof *kept);
    if (find_step(t, DECODER_BYTE_LEVEL) != NULL)
        for (size_t i = 0; i < t->n_added; i++)
            kept[t->added[i].id] = &t->added[i].text;
    return kept;
}

/* Makes the bytes that each token has as the first of a text. The decoder step Metaspace drops
 * every metaspace of the first token, not only the leading one. */
static void make_first(struct token_bytes *b, const struct tokenizer_json *t)
{
    const struct decoder_step *m = find_step(t, DECODER_METASPACE);
    if (m == NULL || m->prepend == PREPEND_NEVER)
        return;
    b->first = xcalloc((size_t)t->n_ids, sizeof *b->first);
    for (int32_t i = 0; i < t->n_ids; i++) {
        if (t->tokens[i].s == NULL)
            continue;
        static const struct tokenizer_text nothing = {.s = "", .n = 0};
        b->first[i].s = tokenizer_replace(xmalloc, t->tokens[i].s, t->tokens[i].n, &m->text,
                                          &nothing, &b->first[i].n);
    }
    b->n_first = t->n_ids;
}

int token_bytes_init(struct token_bytes *b, const struct tokenizer_json *t, struct err *err)
{
    memset(b, 0, sizeof *b);
    int rc = check_steps(t, err);
    if (rc != 0)
        return rc;
    b->at = xcalloc((size_t)t->n_ids + 1, sizeof *b->at);
    const struct tokenizer_text **kept = find_kept(t);
    struct textbuf block = {0};
    size_t n = 0;
    for (int32_t i = 0; i < t->n_ids; i++) {
        b->at[i] = (uint32_t)block.n;
        if (t->tokens[i].s == NULL)
            continue;
        char *s = kept[i] != NULL ? xmemdup(kept[i]->s, n = kept[i]->n)
                                  : decode_token(t, i, &n);
        textbuf_add(&block, s, n);
        textbuf_add(&block, "", 1);
        free(s);
    }
    b->at[t->n_ids] = (uint32_t)block.n;
    b->block = xrealloc(block.p, block.n + 1);
    free(kept);
    make_first(b, t);
    const struct decoder_step *strip = find_step(t, DECODER_STRIP);
    if (strip != NULL) {
        b->strip = strip->text;
        b->strip_max = strip->start;
    }
    return 0;
}

struct tokenizer_text token_bytes_of(const struct token_bytes *b, int32_t id)
{
    uint32_t at = b->at[id], end = b->at[id + 1];
    return at == end ? (struct tokenizer_text){0}
                     : (struct tokenizer_text){.s = b->block + at, .n = end - at - 1};
}

void token_bytes_deinit(struct token_bytes *b)
{
    for (int32_t i = 0; i < b->n_first; i++)
        free((char *)(uintptr_t)b->first[i].s);
    free(b->first);
    free(b->at);
    free(b->block);
    memset(b, 0, sizeof *b);
}

/* --- the stream --------------------------------------------------------------------------- */

struct tokenizer_stream {
    const struct tokenizer *t;
    bool skip_special;
    bool started; /* a token has been pushed */
    /* how many times token_bytes.strip may still be dropped at the beginning */
    int32_t strip;
    struct textbuf text; /* the result of the last call */
    char held[4]; /* beginning of a character, which goes before the next token's bytes */
    size_t n_held;
};

struct tokenizer_stream *tokenizer_stream_create(const struct tokenizer *t,
                                                 bool skip_special)
{
    struct tokenizer_stream *s = xcalloc(1, sizeof *s);
    s->t = t;
    s->skip_special = skip_special;
    s->strip = t->bytes.strip_max;
    textbuf_add(&s->text, "", 0);
    return s;
}

void tokenizer_stream_destroy(struct tokenizer_stream *s)
{
    if (s == NULL)
        return;
    textbuf_free(&s->text);
    free(s);
}

/* Returns how many of the last bytes may be the beginning of a character: 0 to 3. */
static size_t unfinished(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const uint8_t *p = (const uint8_t *)s + n - k;
        if (p[0] < 0x80)
            return 0;
        if (p[0] < 0xC0)
            continue; /* the byte is inside a character */
        size_t want = p[0] < 0xC2   ? 0
                      : p[0] < 0xE0 ? 2
                      : p[0] < 0xF0 ? 3
                      : p[0] < 0xF5 ? 4
                                    : 0;
        if (k >= want)
            return 0;
        /* The second byte must suit the first, or the bytes can never become a character. */
        uint32_t c;
        uint8_t probe[4] = {p[0], k > 1 ? p[1] : 0, k > 2 ? p[2] : 0x80, 0x80};
        if (k > 1)
            return utf8_decode(probe, want, &c) != 0 ? k : 0;
        return k;
    }
    return 0;
}

static void push_id(struct tokenizer_stream *s, int32_t id)
{
    const struct token_bytes *b = &s->t->bytes;
    struct tokenizer_text text = b->first != NULL && !s->started ? b->first[id]
                                                                 : token_bytes_of(b, id);
    const char *p = text.s;
    size_t n = text.n;
    s->started = true;
    while (s->strip > 0 && n >= b->strip.n && memcmp(p, b->strip.s, b->strip.n) == 0) {
        p += b->strip.n;
        n -= b->strip.n;
        s->strip--;
    }
    if (n > 0)
        s->strip = 0;
    textbuf_add(&s->text, p, n);
}

static int check_id(const struct tokenizer *t, int32_t id, struct err *err)
{
    if (id < 0 || id >= t->j.n_ids || token_bytes_of(&t->bytes, id).s == NULL)
        return err_set(err, ERR_FORMAT, "token id %d is not in the vocabulary", id);
    return 0;
}

int tokenizer_stream_push(struct tokenizer_stream *s, int32_t id, const char **text,
                          size_t *n, struct err *err)
{
    int rc = check_id(s->t, id, err);
    if (rc != 0)
        return rc;
    s->text.n = 0;
    textbuf_add(&s->text, s->held, s->n_held);
    bool skipped = s->skip_special && s->t->special[id];
    if (!skipped)
        push_id(s, id);
    /* no character goes on behind a special token */
    s->n_held = skipped ? 0 : unfinished(s->text.p, s->text.n);
    s->text.n -= s->n_held;
    memcpy(s->held, s->text.p + s->text.n, s->n_held);
    s->text.p[s->text.n] = '\0';
    *text = s->text.p;
    *n = s->text.n;
    return 0;
}

void tokenizer_stream_finish(struct tokenizer_stream *s, const char **text, size_t *n)
{
    s->text.n = 0;
    textbuf_add(&s->text, s->held, s->n_held);
    *text = s->text.p;
    *n = s->text.n;
    s->n_held = 0;
    s->started = false;
    s->strip = s->t->bytes.strip_max;
}

/* --- decoding all ids at once ------------------------------------------------------------- */

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                     bool skip_special, char **text, size_t *n_text, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        int rc = check_id(t, ids[i], err);
        if (rc != 0)
            return rc;
    }
    struct tokenizer_stream *s = tokenizer_stream_create(t, skip_special);
    for (size_t i = 0; i < n; i++)
        if (!(skip_special && t->special[ids[i]]))
            push_id(s, ids[i]);
    *n_text = s->text.n;
    *text = s->text.p;
    s->text = (struct textbuf){0};
    tokenizer_stream_destroy(s);
    return 0;
}
