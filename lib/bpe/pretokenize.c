/* pretokenize.c - see pretokenize.h.
 *
 * The file's steps are compiled to four plain ones: cut at matches of a regular expression, put a
 * space in front of each piece, replace spaces by metaspaces, write bytes in the byte-level
 * alphabet. The last is used only if another step follows a ByteLevel step (falcon): pieces are
 * then converted back to bytes at the end. */
#include "bpe/pretokenize.h"

#include "base/mem.h"
#include "bpe/bpe_bytes.h"
#include "bpe/pretokenize_regex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum step_kind { STEP_SPLIT, STEP_PREFIX_SPACE, STEP_METASPACE, STEP_BYTE_TEXT };

struct step {
    enum step_kind kind;
    struct regex *regex; /* for SPLIT: the pattern to cut at */
    enum split_behavior behavior;
    bool invert;
    /* For METASPACE: the text that replaces a space; borrowed. */
    struct tokenizer_text mark;
    enum prepend_scheme prepend;
};

struct pretokenizer {
    int n_steps;
    struct step steps[3 * TOKENIZER_MAX_STEPS];
    bool byte_level;
    bool byte_text; /* one of the steps is STEP_BYTE_TEXT */
};

/* The pattern with which ByteLevel cuts if use_regex is set: GPT-2's. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char digit_pattern[] = "\\p{N}";
/* ASCII punctuation includes symbols ($+<=>^`|~) that Unicode's class P does not. */
static const char punctuation_pattern[] = "[!-\\/:-@\\[-`\\{-~\\p{P}]";

/* --- creating ----------------------------------------------------------------------------- */

static int add_split(struct pretokenizer *p, const char *pattern, size_t n, bool literal,
                     enum split_behavior behavior, bool invert, struct err *err)
{
    struct step *s = &p->steps[p->n_steps];
    int rc = regex_compile(&s->regex, pattern, n, literal ? REGEX_LITERAL : REGEX_ONIGURUMA,
                           err);
    if (rc != 0)
        return rc;
    s->kind = STEP_SPLIT;
    s->behavior = behavior;
    s->invert = invert;
    p->n_steps++;
    return 0;
}

/* Adds a cut at one of the expressions above. */
static int add_known_split(struct pretokenizer *p, const char *pattern,
                           enum split_behavior behavior, struct err *err)
{
    return add_split(p, pattern, strlen(pattern), false, behavior, false, err);
}

static int add_byte_level(struct pretokenizer *p, const struct pretokenizer_step *in,
                          bool last, struct err *err)
{
    if (p->byte_level)
        return err_set(err, ERR_UNSUPPORTED, "a second ByteLevel is not supported");
    p->byte_level = true;
    if (in->add_prefix_space)
        p->steps[p->n_steps++].kind = STEP_PREFIX_SPACE;
    int rc = 0;
    if (in->use_regex)
        rc = add_known_split(p, gpt2_pattern, SPLIT_ISOLATED, err);
    if (rc == 0 && !last) {
        p->steps[p->n_steps++].kind = STEP_BYTE_TEXT;
        p->byte_text = true;
    }
    return rc;
}

static int add_step(struct pretokenizer *p, const struct pretokenizer_step *in, bool last,
                    struct err *err)
{
    switch (in->kind) {
    case PRETOKENIZER_SPLIT:
        return add_split(p, in->pattern.s, in->pattern.n, !in->is_regex, in->behavior,
                         in->invert, err);
    case PRETOKENIZER_BYTE_LEVEL:
        return add_byte_level(p, in, last, err);
    case PRETOKENIZER_METASPACE:
        p->steps[p->n_steps++] = (struct step){
            .kind = STEP_METASPACE, .mark = in->text, .prepend = in->prepend};
        return in->split ? add_split(p, in->text.s, in->text.n, true,
                                     SPLIT_MERGED_WITH_NEXT, false, err)
                         : 0;
    case PRETOKENIZER_DIGITS:
        return add_known_split(p, digit_pattern,
                               in->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, err);
    case PRETOKENIZER_PUNCTUATION:
        return add_known_split(p, punctuation_pattern, in->behavior, err);
    }
    return 0;
}

int pretokenizer_create(struct pretokenizer **out, const struct pretokenizer_step *steps,
                        int n, struct err *err)
{
    struct pretokenizer *p = xcalloc(1, sizeof *p);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = add_step(p, &steps[i], i == n - 1, err);
    if (rc != 0) {
        pretokenizer_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pretokenizer_destroy(struct pretokenizer *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n_steps; i++)
        regex_free(p->steps[i].regex);
    free(p);
}

bool pretokenizer_is_byte_level(const struct pretokenizer *p)
{
    return p->byte_level;
}

/* --- pieces ------------------------------------------------------------------------------- */

void pieces_deinit(struct pieces *p)
{
    free(p->list);
    free(p->spare);
    free(p->owned);
    regex_scratch_free(p->match);
    memset(p, 0, sizeof *p);
}

static void push(struct pieces *p, size_t begin, size_t end)
{
    if (begin == end || p->failed)
        return;
    if (p->n == p->cap) {
        size_t cap = p->cap != 0 ? 2 * p->cap : 64;
        struct piece *list = mem_try_realloc(p->list, cap * sizeof *list);
        p->failed |= list == NULL;
        if (list == NULL)
            return;
        p->list = list;
        p->cap = cap;
    }
    p->list[p->n++] = (struct piece){.begin = begin, .end = end};
}

/* Starts a new list and returns the old one, which stays valid until the next swap. */
static const struct piece *swap_lists(struct pieces *p, size_t *n_old)
{
    struct piece *old = p->list;
    size_t cap = p->cap;
    *n_old = p->n;
    p->list = p->spare;
    p->cap = p->spare_cap;
    p->n = 0;
    p->spare = old;
    p->spare_cap = cap;
    return old;
}

/* --- cutting ------------------------------------------------------------------------------ */

/* One piece that is being cut: its parts, matches and the text between them, arrive in order. */
struct cut {
    struct pieces *out;
    enum split_behavior behavior;
    size_t first;     /* index of the piece's first part */
    bool was_match;   /* the previous part was a match */
    bool has_waiting; /* MERGED_WITH_NEXT: a match waits for the part that follows */
    struct piece waiting;
};

static void extend_last(struct cut *c, size_t begin, size_t end)
{
    if (c->out->n > c->first)
        c->out->list[c->out->n - 1].end = end;
    else
        push(c->out, begin, end);
}

static void merge_with_next(struct cut *c, size_t begin, size_t end, bool match)
{
    if (c->has_waiting && !match)
        begin = c->waiting.begin;
    else if (c->has_waiting)
        push(c->out, c->waiting.begin, c->waiting.end);
    c->has_waiting = match;
    if (match)
        c->waiting = (struct piece){.begin = begin, .end = end};
    else
        push(c->out, begin, end);
}

static void add_part(struct cut *c, size_t begin, size_t end, bool match)
{
    if (begin == end)
        return;
    switch (c->behavior) {
    case SPLIT_ISOLATED:
        push(c->out, begin, end);
        break;
    case SPLIT_REMOVED:
        if (!match)
            push(c->out, begin, end);
        break;
    case SPLIT_CONTIGUOUS:
        if (match == c->was_match)
            extend_last(c, begin, end);
        else
            push(c->out, begin, end);
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        if (match && !c->was_match)
            extend_last(c, begin, end);
        else
            push(c->out, begin, end);
        break;
    case SPLIT_MERGED_WITH_NEXT:
        merge_with_next(c, begin, end, match);
        break;
    }
    c->was_match = match;
}

/* Passes on the finished pieces: all but the last one, which may still grow. */
typedef int hand_on_fn(void *arg, struct pieces *p, struct err *err);

static int cut_piece(const struct step *s, struct pieces *p, struct piece piece,
                     hand_on_fn *hand_on, void *arg, struct err *err)
{
    enum { WINDOW = 4096 };
    struct cut c = {.out = p, .behavior = s->behavior, .first = p->n};
    const char *text = p->text + piece.begin;
    const size_t n = piece.end - piece.begin;
    size_t at = 0, begin, end;
    int rc;
    while ((rc = regex_find(s->regex, &p->match, text, n, at, &begin, &end, err)) > 0) {
        add_part(&c, piece.begin + at, piece.begin + begin, s->invert);
        add_part(&c, piece.begin + begin, piece.begin + end, !s->invert);
        at = end;
        if (hand_on == NULL || p->n < WINDOW)
            continue;
        int failed = hand_on(arg, p, err);
        if (failed != 0)
            return failed;
        p->list[0] = p->list[p->n - 1];
        p->n = 1;
        c.first = 0;
    }
    add_part(&c, piece.begin + at, piece.end, s->invert);
    if (c.has_waiting)
        push(p, c.waiting.begin, c.waiting.end);
    return rc;
}

static int run_split(const struct step *s, struct pieces *p, struct err *err)
{
    size_t n;
    const struct piece *old = swap_lists(p, &n);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = cut_piece(s, p, old[i], NULL, NULL, err);
    return rc;
}

/* --- rewriting ---------------------------------------------------------------------------- */

/* A step that changes the text rewrites every piece to `to`, which is large enough. Returns the
 * length. */
typedef size_t rewrite_fn(const struct step *s, const char *piece, size_t n, bool first,
                          char *to);

static size_t put_prefix_space(const struct step *s, const char *piece, size_t n,
                               bool first, char *to)
{
    (void)s;
    (void)first;
    size_t k = piece[0] != ' ';
    to[0] = ' ';
    memcpy(to + k, piece, n);
    return n + k;
}

static size_t put_metaspaces(const struct step *s, const char *piece, size_t n, bool first,
                             char *to)
{
    size_t len = 0;
    bool begins_with_mark = piece[0] == ' ' ||
                            (n >= s->mark.n && memcmp(piece, s->mark.s, s->mark.n) == 0);
    if (!begins_with_mark &&
        (s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && first))) {
        memcpy(to, s->mark.s, s->mark.n);
        len = s->mark.n;
    }
    for (size_t i = 0; i < n; i++) {
        if (piece[i] == ' ') {
            memcpy(to + len, s->mark.s, s->mark.n);
            len += s->mark.n;
        } else {
            to[len++] = piece[i];
        }
    }
    return len;
}

static size_t put_byte_text(const struct step *s, const char *piece, size_t n, bool first,
                            char *to)
{
    (void)s;
    (void)first;
    return bpe_bytes_to_text(piece, n, to);
}

static size_t put_bytes(const struct step *s, const char *piece, size_t n, bool first,
                        char *to)
{
    (void)s;
    (void)first;
    size_t n_bytes = 0;
    /* Cannot fail: the text was written by put_byte_text, and cut between its characters. */
    (void)bpe_bytes_from_text(piece, n, to, &n_bytes);
    return n_bytes;
}

/* Rewrites all pieces by fn. fn makes at most `grow` bytes of each byte, and adds at most `grow`
 * per piece. */
static void rewrite(struct pieces *p, rewrite_fn *fn, const struct step *s, size_t grow,
                    bool at_start)
{
    size_t n;
    const struct piece *old = swap_lists(p, &n);
    char *text = mem_try((p->n_text + n) * grow);
    size_t len = 0;
    if (text == NULL) {
        p->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = fn(s, p->text + old[i].begin, old[i].end - old[i].begin,
                      at_start && i == 0, text + len);
        push(p, len, len + k);
        len += k;
    }
    free(p->owned);
    p->text = p->owned = text;
    p->n_text = len;
}

static int no_memory(size_t n, struct err *err)
{
    return err_set(err, -ENOMEM, "no memory to split a text of %zu bytes", n);
}

static void begin_text(struct pieces *out, const char *text, size_t n)
{
    free(out->owned);
    out->owned = NULL;
    out->text = text;
    out->n_text = n;
    out->n = 0;
    out->failed = false;
}

/* Runs steps [from, to) on the present pieces. */
static int run_steps(const struct pretokenizer *p, int from, int to, bool at_start,
                     struct pieces *out, struct err *err)
{
    int rc = 0;
    for (int i = from; i < to && rc == 0 && !out->failed; i++) {
        const struct step *s = &p->steps[i];
        switch (s->kind) {
        case STEP_SPLIT:
            rc = run_split(s, out, err);
            break;
        case STEP_PREFIX_SPACE:
            rewrite(out, put_prefix_space, s, 2, at_start);
            break;
        case STEP_METASPACE:
            rewrite(out, put_metaspaces, s, s->mark.n + 1, at_start);
            break;
        case STEP_BYTE_TEXT:
            rewrite(out, put_byte_text, s, 2, at_start);
            break;
        }
    }
    return rc == 0 && out->failed ? no_memory(out->n_text, err) : rc;
}

/* Returns the index of the *first cut*: the step from which on all steps only cut the text.
 * n_steps: there is no such step, since the last one also changes the text. */
static int first_cut(const struct pretokenizer *p)
{
    int i = p->n_steps;
    while (i > 0 && p->steps[i - 1].kind == STEP_SPLIT)
        i--;
    return i;
}

/* State for handing on the pieces of the first cut. */
struct each {
    const struct pretokenizer *p;
    int next;             /* index of the next step */
    struct pieces window; /* pieces of the first cut, which the later steps cut further */
    piece_fn *fn;
    void *arg;
};

static int pass_on(struct each *e, struct pieces *from, size_t n, struct err *err)
{
    struct pieces *w = &e->window;
    begin_text(w, from->text, from->n_text);
    /* The same scratch memory for all pieces: it counts the work of all matches of the text. */
    w->match = from->match;
    for (size_t i = 0; i < n; i++)
        push(w, from->list[i].begin, from->list[i].end);
    int rc = run_steps(e->p, e->next, e->p->n_steps, false, w, err);
    from->match = w->match;
    w->match = NULL;
    for (size_t i = 0; i < w->n && rc == 0; i++)
        rc = e->fn(e->arg, w->text + w->list[i].begin, w->list[i].end - w->list[i].begin,
                   err);
    return rc;
}

static int hand_on(void *arg, struct pieces *p, struct err *err)
{
    return p->failed ? no_memory(p->n_text, err) : pass_on(arg, p, p->n - 1, err);
}

/* Texts of megabytes have millions of pieces.  If the last steps only cut, one window of pieces at
 * a time is cut and handed on. */
int pretokenize_each(const struct pretokenizer *p, const char *text, size_t n,
                     bool at_start, struct pieces *out, piece_fn *fn, void *arg,
                     struct err *err)
{
    int cut = p->byte_text ? p->n_steps : first_cut(p);
    struct each e = {.p = p, .next = cut, .fn = fn, .arg = arg};
    begin_text(out, text, n);
    push(out, 0, n);
    int rc = run_steps(p, 0, cut, at_start, out, err);
    if (rc == 0 && p->byte_text)
        rewrite(out, put_bytes, NULL, 2, at_start);
    if (rc == 0 && out->failed)
        rc = no_memory(n, err);
    if (rc == 0 && cut < p->n_steps && out->n == 1) {
        struct piece whole = out->list[0];
        out->n = 0;
        e.next = cut + 1;
        rc = cut_piece(&p->steps[cut], out, whole, hand_on, &e, err);
        if (rc == 0 && out->failed)
            rc = no_memory(n, err);
    }
    if (rc == 0)
        rc = pass_on(&e, out, out->n, err);
    pieces_deinit(&e.window);
    return rc;
}
