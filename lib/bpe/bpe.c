/* bpe.c - see bpe.h. */
#include "bpe/bpe.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "bpe/slots.h"
#include "base/utf8.h"
#include "bpe/bpe_bytes.h"

#include <stdatomic.h>
#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Whether merging a piece is known to end in the single token that spells it: see bpe.h. */
enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

struct bpe {
    bool byte_level, fuse_unk, ignore_merges;
    int32_t unk_id;
    struct slots tokens; /* makeable tokens by the bytes that they spell */
    const struct tokenizer_text *texts;
    /* byte-level: token of each byte; else: token "<0x..>" of each byte, or -1 */
    int32_t byte_id[256];

    struct slots pairs; /* merges by (left, right) */
    const struct tokenizer_merge *merges;

    const float *scores; /* scores that order the merges; NULL: merges go by rank */
    size_t longest;      /* bytes of the longest token, if there are scores */

    bool cut_words; /* text may be cut into words: see find_word_cuts */
    _Atomic uint8_t *whole;
};

#define NO_RANK UINT32_MAX

/* The character that stands for a space in SentencePiece vocabularies, U+2581. */
static const char metaspace[] = "\xE2\x96\x81";
enum { METASPACE_BYTES = 3 };

void id_list_push(struct id_list *l, int32_t id)
{
    /* After a failure no further id asks for memory: a million refused requests take a minute. */
    if (l->failed)
        return;
    if (l->n == l->cap) {
        /* Long lists grow by a quarter, so that the largest texts leave little memory unused. */
        size_t cap = l->cap == 0 ? 64 : l->cap < 1 << 16 ? 2 * l->cap : l->cap + l->cap / 4;
        int32_t *ids = mem_try_realloc(l->ids, cap * sizeof *ids);
        l->failed |= ids == NULL;
        if (ids == NULL)
            return;
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
}

void id_list_deinit(struct id_list *l)
{
    free(l->ids);
    memset(l, 0, sizeof *l);
}

/* --- creating ----------------------------------------------------------------------------- */

/* Returns an array that tells which tokens BPE may make.  BPE never makes a token that was only
 * added. It must not make a special token either, whatever the vocabulary holds: a user could forge
 * one. */
static bool *find_makeable(const struct tokenizer_json *t)
{
    bool *ok = xcalloc((size_t)t->n_ids, sizeof *ok);
    for (int32_t i = 0; i < t->n_ids; i++)
        ok[i] = t->tokens[i].s != NULL && (t->reserved == NULL || !t->reserved[i]);
    for (size_t i = 0; i < t->n_added; i++)
        ok[t->added[i].id] = t->added[i].in_vocab && !t->added[i].special;
    return ok;
}

/* Returns the slot of the token that spells these bytes, or the empty slot where it belongs. */
static uint32_t *token_slot(const struct bpe *b, const char *s, size_t n, uint64_t hash)
{
    uint32_t *slot = slots_next(&b->tokens, hash, NULL);
    for (; *slot != 0; slot = slots_next(&b->tokens, hash, slot)) {
        const struct tokenizer_text *t = &b->texts[slots_index(&b->tokens, *slot)];
        if (b->byte_level ? bpe_bytes_are(t->s, t->n, s, n)
                          : t->n == n && memcmp(t->s, s, n) == 0)
            break;
    }
    return slot;
}

/* Returns the token of these bytes, or -1. */
static int32_t token_of(const struct bpe *b, const char *s, size_t n)
{
    return (int32_t)slots_index(&b->tokens, *token_slot(b, s, n, checksum64(s, n)));
}

/* Indexes the tokens by their bytes; of equal ones the first is found. A byte-level token with
 * characters outside the byte alphabet is not found. */
static void index_tokens(struct bpe *b, const struct tokenizer_json *t,
                         const bool *makeable)
{
    b->texts = t->tokens;
    slots_init(&b->tokens, (size_t)t->n_ids, (size_t)t->n_ids);
    memset(b->byte_id, -1, sizeof b->byte_id);
    for (int32_t i = 0; i < t->n_ids; i++)
        b->longest = makeable[i] ? MAX(t->tokens[i].n, b->longest) : b->longest;
    char *spelt = xmalloc(b->longest + 1);
    for (int32_t i = 0; i < t->n_ids; i++) {
        size_t n = t->tokens[i].n;
        const char *s = b->byte_level ? spelt : t->tokens[i].s;
        if (!makeable[i] ||
            (b->byte_level && !bpe_bytes_from_text(t->tokens[i].s, n, spelt, &n)))
            continue;
        uint64_t hash = checksum64(s, n);
        uint32_t *slot = token_slot(b, s, n, hash);
        if (*slot == 0)
            slots_set(&b->tokens, slot, hash, (size_t)i);
        if (b->byte_level && n == 1)
            b->byte_id[(uint8_t)*s] = i;
    }
    free(spelt);
}

/* Finds the tokens "<0x..>". A vocabulary may lack some of them. */
static void find_fallback_bytes(struct bpe *b, const struct tokenizer_json *t)
{
    memset(b->byte_id, -1, sizeof b->byte_id);
    for (int i = 0; i < 256 && t->byte_fallback; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = tokenizer_json_find(t, name, 6);
    }
}

bool bpe_has_all_bytes(const struct bpe *b)
{
    for (int i = 0; i < 256; i++)
        if (b->byte_id[i] < 0)
            return false;
    return true;
}

/* Returns whether a character's bytes are all tokens. */
static bool has_bytes(const struct bpe *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] < 0)
            return false;
    return true;
}

static uint64_t pair_hash(int32_t left, int32_t right)
{
    return rng_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* Returns the slot of a pair, or the empty slot where it belongs. */
static uint32_t *pair_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t hash = pair_hash(left, right);
    uint32_t *slot = slots_next(&b->pairs, hash, NULL);
    for (; *slot != 0; slot = slots_next(&b->pairs, hash, slot)) {
        const struct tokenizer_merge *m = &b->merges[slots_index(&b->pairs, *slot)];
        if (m->left == left && m->right == right)
            break;
    }
    return slot;
}

/* Returns the rank of a pair, or NO_RANK. */
static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    return (uint32_t)slots_index(&b->pairs, *pair_slot(b, left, right));
}

/* Indexes the merges. A pair that is listed twice gets its last rank, as in Hugging Face's
 * tokenizers. */
static void index_merges(struct bpe *b, const struct tokenizer_json *t)
{
    slots_init(&b->pairs, t->n_merges, t->n_merges);
    b->merges = t->merges;
    for (size_t r = 0; r < t->n_merges; r++) {
        int32_t left = t->merges[r].left, right = t->merges[r].right;
        slots_set(&b->pairs, pair_slot(b, left, right), pair_hash(left, right), r);
    }
}

/* Returns whether a token has a metaspace behind another character. */
static bool crosses_words(const struct tokenizer_text *s)
{
    bool seen_other = false;
    for (size_t i = 0; i < s->n;) {
        bool space = s->n - i >= METASPACE_BYTES &&
                     memcmp(s->s + i, metaspace, METASPACE_BYTES) == 0;
        if (space && seen_other)
            return true;
        seen_other |= !space;
        i += space ? METASPACE_BYTES : 1;
    }
    return false;
}

/* Returns whether text may be cut into words.  SentencePiece-style models have no pre-tokenizer, so
 * a piece is a whole text.  If no merge makes a token in which a metaspace follows another
 * character, no merge crosses such a boundary, and cutting there changes no id.  Words can be
 * looked up and keep the heap small.  (The metaspace must be a token itself, so that no run of
 * unknown characters spans a cut.  No text may be dropped, or tokens on both sides of it merge.) */
static bool find_word_cuts(const struct bpe *b, const struct tokenizer_json *t,
                           const bool *makeable)
{
    bool drops = b->unk_id < 0 && !bpe_has_all_bytes(b);
    if (b->byte_level || b->ignore_merges || drops ||
        token_of(b, metaspace, METASPACE_BYTES) < 0)
        return false;
    for (size_t r = 0; r < t->n_merges; r++)
        if (crosses_words(&t->tokens[t->merges[r].joined]))
            return false;
    for (int32_t i = 0; t->scores != NULL && i < t->n_ids; i++)
        if (makeable[i] && crosses_words(&t->tokens[i]))
            return false;
    return true;
}

struct bpe *bpe_create(const struct tokenizer_json *t, bool byte_level)
{
    struct bpe *b = xcalloc(1, sizeof *b);
    b->byte_level = byte_level;
    b->fuse_unk = t->fuse_unk;
    b->ignore_merges = t->ignore_merges;
    b->unk_id = t->unk_id;
    bool *makeable = find_makeable(t);
    index_tokens(b, t, makeable);
    if (!byte_level)
        find_fallback_bytes(b, t);
    b->scores = t->scores;
    b->cut_words = find_word_cuts(b, t, makeable);
    free(makeable);
    index_merges(b, t);
    b->whole = xcalloc((size_t)t->n_ids, sizeof *b->whole);
    return b;
}

void bpe_destroy(struct bpe *b)
{
    if (b == NULL)
        return;
    slots_deinit(&b->tokens);
    slots_deinit(&b->pairs);
    free(b->whole);
    free(b);
}

/* --- one piece ---------------------------------------------------------------------------- */

/* One symbol of a doubly linked list in an array; a symbol that was merged away has id -1. */
struct symbol {
    int32_t id;
    uint32_t prev, next; /* NO_SYMBOL at either end of the list */
};

#define NO_SYMBOL UINT32_MAX

void bpe_work_deinit(struct bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    memset(w, 0, sizeof *w);
}

/* Adds a key to the heap. Keys are rank << 32 | position: the lowest rank comes first, and the
 * leftmost of equal ranks. */
static void heap_push(struct bpe_work *w, uint64_t key)
{
    if (w->failed)
        return;
    if (w->n_heap == w->heap_cap) {
        size_t cap = w->heap_cap != 0 ? 2 * w->heap_cap : 64;
        uint64_t *heap = mem_try_realloc(w->heap, cap * sizeof *heap);
        w->failed |= heap == NULL;
        if (heap == NULL)
            return;
        w->heap = heap;
        w->heap_cap = cap;
    }
    size_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

static uint64_t heap_pop(struct bpe_work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child])
            child++;
        if (last <= w->heap[child])
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static void push_pair(const struct bpe *b, struct bpe_work *w, const struct symbol *s,
                      uint32_t at)
{
    uint32_t rank = rank_of(b, s[at].id, s[s[at].next].id);
    if (rank != NO_RANK)
        heap_push(w, (uint64_t)rank << 32 | at);
}

static void merge_all(const struct bpe *b, struct bpe_work *w, struct symbol *s, uint32_t n)
{
    w->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        push_pair(b, w, s, i);
    while (w->n_heap > 0) {
        uint64_t top = heap_pop(w);
        const struct tokenizer_merge *m = &b->merges[top >> 32];
        uint32_t at = (uint32_t)top, right = s[at].next;
        /* The entry is stale if either symbol has been merged since. */
        if (s[at].id != m->left || right == NO_SYMBOL || s[right].id != m->right)
            continue;
        s[at].id = m->joined;
        s[right].id = -1;
        s[at].next = s[right].next;
        if (s[at].next != NO_SYMBOL) {
            s[s[at].next].prev = at;
            push_pair(b, w, s, at);
        }
        if (s[at].prev != NO_SYMBOL)
            push_pair(b, w, s, s[at].prev);
    }
}

/* Symbols of a piece, before merging. */
struct symbols {
    const struct bpe *b;
    struct symbol *s;
    uint32_t n;
    bool owes_unknown; /* the unknown token for the text before is still to be added */
};

static void add_symbol(struct symbols *l, int32_t id)
{
    l->s[l->n++].id = id;
}

static void settle_unknown(struct symbols *l)
{
    if (l->owes_unknown)
        add_symbol(l, l->b->unk_id);
    l->owes_unknown = false;
}

/* Adds text that the vocabulary lacks. If fuse_unk is set, a run of such text is one symbol. If
 * there is no unknown token, the text is dropped, as in Hugging Face's tokenizers. */
static void add_unknown(struct symbols *l)
{
    if (!l->b->fuse_unk)
        settle_unknown(l);
    l->owes_unknown = l->b->unk_id >= 0;
}

static void split_bytes(struct symbols *l, const char *piece, size_t n_piece)
{
    for (size_t i = 0; i < n_piece; i++) {
        int32_t id = l->b->byte_id[(uint8_t)piece[i]];
        if (id < 0) {
            add_unknown(l);
            continue;
        }
        settle_unknown(l);
        add_symbol(l, id);
    }
    settle_unknown(l);
}

/* A character that becomes its bytes does not settle the unknown token before it: the original
 * puts that token behind the bytes. */
static void split_characters(struct symbols *l, const char *piece, size_t n_piece)
{
    const struct bpe *b = l->b;
    for (size_t i = 0, len; i < n_piece; i += len) {
        uint32_t c;
        len = utf8_decode(piece + i, n_piece - i, &c);
        int32_t id = token_of(b, piece + i, len);
        if (id >= 0) {
            settle_unknown(l);
            add_symbol(l, id);
        } else if (has_bytes(b, piece + i, len)) {
            for (size_t k = 0; k < len; k++)
                add_symbol(l, b->byte_id[(uint8_t)piece[i + k]]);
        } else {
            add_unknown(l);
        }
    }
    settle_unknown(l);
}

/* Returns room for n symbols, or NULL if there is no memory. */
static struct symbol *symbols_for(struct bpe_work *w, size_t n)
{
    if (w->symbols_cap < n) {
        free(w->symbols);
        w->symbols_cap = MAX(n, 64);
        w->symbols = mem_try(w->symbols_cap * sizeof(struct symbol));
    }
    return w->symbols;
}

static int no_memory(size_t n, struct err *err)
{
    return err_set(err, -ENOMEM, "no memory to tokenize a piece of %zu bytes", n);
}

/* --- one piece, by scores ----------------------------------------------------------------- */

/* With scores, a symbol is a run of characters, whether or not it is a token; `id` is its length in
 * bytes, 0 if it was merged away.  Of all neighbours whose joined text is a token, those with the
 * best score are merged first, the leftmost of equals first. */

struct run {
    struct symbol s;
    uint32_t begin; /* offset of the run's first byte in the piece */
};

/* Maps scores to integers that ascend where scores descend; 0 and -0 are equal. */
static uint32_t order_of(float score)
{
    uint32_t u;
    score += 0.0f;
    memcpy(&u, &score, sizeof u);
    return u >> 31 != 0 ? u : ~u & 0x7fffffff;
}

/* Returns the token that a run and its right neighbour make, or -1. */
static int32_t joined_token(const struct bpe *b, const char *piece, const struct run *s,
                            uint32_t at)
{
    uint32_t right = s[at].s.next;
    if (right == NO_SYMBOL)
        return -1;
    size_t n = (size_t)s[at].s.id + (size_t)s[right].s.id;
    return n <= b->longest ? token_of(b, piece + s[at].begin, n) : -1;
}

static void push_joined(const struct bpe *b, struct bpe_work *w, const char *piece,
                        const struct run *s, uint32_t at)
{
    int32_t id = joined_token(b, piece, s, at);
    if (id >= 0)
        heap_push(w, (uint64_t)order_of(b->scores[id]) << 32 | at);
}

static void merge_runs(const struct bpe *b, struct bpe_work *w, const char *piece,
                       struct run *s, uint32_t n)
{
    w->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        push_joined(b, w, piece, s, i);
    while (w->n_heap > 0) {
        uint64_t top = heap_pop(w);
        uint32_t at = (uint32_t)top, right = s[at].s.next;
        int32_t id = s[at].s.id != 0 ? joined_token(b, piece, s, at) : -1;
        /* The entry is stale if the run or its neighbour has grown since. A stale entry whose order
         * is that of the present pair equals the present pair's own entry, and is used. */
        if (id < 0 || order_of(b->scores[id]) != top >> 32)
            continue;
        s[at].s.id += s[right].s.id;
        s[right].s.id = 0;
        s[at].s.next = s[right].s.next;
        if (s[at].s.next != NO_SYMBOL)
            s[s[at].s.next].s.prev = at;
        if (s[at].s.prev != NO_SYMBOL)
            push_joined(b, w, piece, s, s[at].s.prev);
        push_joined(b, w, piece, s, at);
    }
}

/* Adds the ids of a run.  A run that is not a token is one character: it becomes its bytes or the
 * unknown token, or is dropped if there is neither. */
static void add_run(const struct bpe *b, const char *text, size_t n, struct id_list *out,
                    bool *in_unknown)
{
    int32_t id = token_of(b, text, n);
    bool bytes = id < 0 && has_bytes(b, text, n);
    if (id >= 0)
        id_list_push(out, id);
    else if (!bytes && b->unk_id >= 0 && !(*in_unknown && b->fuse_unk))
        id_list_push(out, b->unk_id);
    for (size_t k = 0; bytes && k < n; k++)
        id_list_push(out, b->byte_id[(uint8_t)text[k]]);
    *in_unknown = id < 0;
}

static int encode_by_scores(const struct bpe *b, struct bpe_work *w, const char *piece,
                            size_t n, struct id_list *out, struct err *err)
{
    /* This memory holds n runs, since a run is smaller than two symbols. */
    struct run *s = (struct run *)symbols_for(w, 2 * n);
    uint32_t count = 0;
    if (s == NULL)
        return no_memory(n, err);
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = utf8_decode(piece + i, n - i, &c);
        s[count] = (struct run){.s = {.id = (int32_t)len, .next = count + 1},
                                .begin = (uint32_t)i};
        s[count].s.prev = count > 0 ? count - 1 : NO_SYMBOL;
        count++;
    }
    s[count - 1].s.next = NO_SYMBOL;
    merge_runs(b, w, piece, s, count);
    if (w->failed)
        return no_memory(n, err);
    bool in_unknown = false;
    for (uint32_t i = 0; i != NO_SYMBOL; i = s[i].s.next)
        add_run(b, piece + s[i].begin, (size_t)s[i].s.id, out, &in_unknown);
    return 0;
}

/* Merges the piece and appends its ids to *out. */
static int encode_by_merging(const struct bpe *b, struct bpe_work *w, const char *piece,
                             size_t n, struct id_list *out, struct err *err)
{
    struct symbol *s = symbols_for(w, n); /* there are never more symbols than bytes */
    if (s == NULL)
        return no_memory(n, err);
    struct symbols l = {.b = b, .s = s};
    (b->byte_level ? split_bytes : split_characters)(&l, piece, n);
    const uint32_t count = l.n;
    if (count == 0)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        s[i].prev = i > 0 ? i - 1 : NO_SYMBOL;
        s[i].next = i + 1 < count ? i + 1 : NO_SYMBOL;
    }
    merge_all(b, w, s, count);
    if (w->failed)
        return no_memory(n, err);
    for (uint32_t i = 0; i != NO_SYMBOL; i = s[i].next)
        id_list_push(out, s[i].id);
    return 0;
}

static int encode_word(const struct bpe *b, struct bpe_work *w, const char *piece, size_t n,
                       struct id_list *out, struct err *err)
{
    int32_t id = token_of(b, piece, n);
    uint8_t whole = WHOLE_NO;
    if (id >= 0) {
        whole = b->ignore_merges
                    ? WHOLE_YES
                    : atomic_load_explicit(&b->whole[id], memory_order_relaxed);
        if (whole == WHOLE_YES) {
            id_list_push(out, id);
            return 0;
        }
    }
    size_t before = out->n;
    int rc = b->scores != NULL ? encode_by_scores(b, w, piece, n, out, err)
                               : encode_by_merging(b, w, piece, n, out, err);
    if (rc == 0 && id >= 0 && whole == WHOLE_UNKNOWN && !out->failed) {
        bool yes = out->n == before + 1 && out->ids[before] == id;
        atomic_store_explicit(&b->whole[id], yes ? WHOLE_YES : WHOLE_NO,
                              memory_order_relaxed);
    }
    return rc;
}

/* Returns the length of the first word, which ends at the first metaspace that follows another
 * character. */
static size_t word_length(const char *s, size_t n)
{
    size_t i = 0;
    while (n - i >= METASPACE_BYTES && memcmp(s + i, metaspace, METASPACE_BYTES) == 0)
        i += METASPACE_BYTES;
    while (i < n) {
        const char *p = memchr(s + i, metaspace[0], n - i);
        if (p == NULL || n - (size_t)(p - s) < METASPACE_BYTES)
            return n;
        i = (size_t)(p - s);
        if (memcmp(p, metaspace, METASPACE_BYTES) == 0)
            return i;
        i++;
    }
    return n;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *piece, size_t n,
               struct id_list *out, struct err *err)
{
    int rc = 0;
    for (size_t at = 0, len; at < n && rc == 0; at += len) {
        len = b->cut_words ? word_length(piece + at, n - at) : n;
        if (len > UINT32_MAX / 2)
            return err_set(err, ERR_LIMIT, "a piece of %zu bytes is too long to tokenize",
                           len);
        rc = encode_word(b, w, piece + at, len, out, err);
    }
    return rc;
}

struct text_ids {
    const struct bpe *b;
    struct bpe_work *w;
    struct id_list *out;
};

static int take_piece(void *arg, const char *s, size_t n, struct err *err)
{
    struct text_ids *t = arg;
    if (t->out->failed)
        return err_set(err, -ENOMEM, "no memory for the tokens of %zu bytes", n);
    return bpe_encode(t->b, t->w, s, n, t->out, err);
}

int bpe_encode_text(const struct bpe *b, const struct pretokenizer *p, const char *text,
                    size_t n, bool at_start, struct bpe_work *w, struct pieces *pieces,
                    struct id_list *out, struct err *err)
{
    struct text_ids ids = {b, w, out};
    return pretokenize_each(p, text, n, at_start, pieces, take_piece, &ids, err);
}
