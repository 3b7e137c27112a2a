/* draft.c - see draft.h. */
#include "api/draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "api/dates.h"
#include "api/items.h"
#include "api/retoken.h"

/* Most marks that are tried. Trying a mark takes a digest over the text, so only the marks of the
 * last turns are tried. */
enum { MAX_MARKS_TRIED = 24 };

void draft_deinit(struct draft *d)
{
    turn_path_free(d->path, d->n_path);
    json_free(d->input);
    if (!d->is_lent) {
        prompt_text_deinit(&d->text);
        hcache_free(d->ids);
    }
    *d = (struct draft){0};
}

int draft_continue(struct draft *d, struct conversations *c, int64_t parent,
                   struct err *err)
{
    d->parent = parent;
    return parent == 0 ? 0 : turn_path(c, parent, &d->path, &d->n_path, err);
}

/* --- the text --------------------------------------------------------------------------------- */

static void push_all(struct json *list, const char *text)
{
    struct json *items = json_of_text(text);
    json_share_all(list, items);
    json_free(items);
}

struct json *draft_items(struct turn *const *path, int n)
{
    struct json *list = json_new_array();
    for (int i = 0; i < n; i++) {
        push_all(list, path[i]->input);
        push_all(list, path[i]->output);
    }
    return list;
}

/* Returns the items of all turns. Frees their texts as soon as they are read, since they are
 * large in a long conversation. */
static struct json *take_items(struct draft *d)
{
    struct json *list = json_new_array();
    for (int i = 0; i < d->n_path; i++) {
        push_all(list, d->path[i]->input);
        push_all(list, d->path[i]->output);
        free(d->path[i]->input);
        free(d->path[i]->output);
        d->path[i]->input = d->path[i]->output = NULL;
    }
    return list;
}

/* A turn of an earlier version has no moment; the model saw it when it was made. */
bool draft_moment(struct turn *const *path, int n, char out[PROMPT_DATE_BYTES])
{
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        const struct turn *t = path[i];
        if (t->moment[0] == 0 && t->n_tokens == 0)
            continue;
        if (t->moment[0] != 0)
            memcpy(out, t->moment, PROMPT_DATE_BYTES);
        else
            prompt_moment(t->created_s, out);
        return true;
    }
    return false;
}

/* Renders instructions, earlier turns and d->input to d->text, with the conversation's date. */
static int render(struct draft *d, struct hcache *h, const struct draft_opts *o,
                  struct fault *f)
{
    char moment[PROMPT_DATE_BYTES];
    const bool has_moment = draft_moment(d->path, d->n_path, moment);
    struct json *messages = json_new_array(), *said = take_items(d);
    size_t n_instructions = 0;
    if (json_string_of(o->instructions, &n_instructions) != NULL && n_instructions > 0)
        json_push(messages,
                  json_make("{role: 'system', content: %p}", json_share(o->instructions)));
    json_share_all(said, d->input);
    items_to_messages(said, messages);
    json_free(said);
    if (o->truncates)
        d->n_system = prompt_system_tokens(h, messages);
    struct chat_source source = {.messages = messages,
                                 .tools = o->tools,
                                 .kwargs = o->kwargs,
                                 .effort = o->effort,
                                 .thinking = o->thinking,
                                 .plain = o->plain,
                                 .parse_special = o->parse_special,
                                 .truncates = o->truncates,
                                 .date = has_moment ? moment : NULL};
    int rc = dates_render(o->dates, h, o->salt, &source, &d->text, f);
    if (rc != 0 && strcmp(f->param, "messages") == 0)
        snprintf(f->param, sizeof f->param, "%s", o->param);
    json_free(messages);
    return rc;
}

/* --- the tokens ------------------------------------------------------------------------------- */

/* Returns the mark of the longest beginning of d->text whose tokens an earlier turn has, with that
 * turn's index in *turn. Returns NULL if no mark fits, or none of the last MAX_MARKS_TRIED ones. */
static const struct turn_mark *find_mark(const struct draft *d, size_t n_text, int *turn)
{
    int n_tried = 0;
    for (int i = d->n_path - 1; i >= 0; i--) {
        const struct turn *t = d->path[i];
        for (int m = t->n_marks - 1; m >= 0 && n_tried < MAX_MARKS_TRIED; m--) {
            const struct turn_mark *mark = &t->mark[m];
            if (mark->n_bytes > n_text || mark->n_tokens > (uint32_t)t->n_tokens)
                continue;
            struct sha256 digest = sha256_of(d->text.text, mark->n_bytes);
            n_tried++;
            if (memcmp(digest.b, mark->digest.b, sizeof digest.b) == 0) {
                *turn = i;
                return mark;
            }
        }
    }
    return NULL;
}

/* Returns the last turn that the model has seen, or -1. Items may have been inserted after it. */
static int last_seen(const struct draft *d)
{
    int i = d->n_path - 1;
    while (i >= 0 && d->path[i]->n_tokens == 0)
        i--;
    return i;
}

/* Returns whether a turn's tokens belong to another model; then they have no meaning here. */
static bool is_other_model(const struct turn *t, const struct hcache *h)
{
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    return strcmp(t->fingerprint, info.fingerprint) != 0;
}

/* Sets d->ids. As far as the text is that of earlier turns, it keeps their tokens. Sets d->what if
 * their text has changed, or if another model has computed them. */
static int tokenize(struct draft *d, const struct hcache *h, struct hcache_err *err)
{
    const struct prompt_text *text = &d->text;
    int seen = last_seen(d), turn = -1, rc;
    struct prompt_ids out = {0};
    bool is_other = seen >= 0 && is_other_model(d->path[seen], h);
    const struct turn_mark *mark = seen >= 0 && !is_other ? find_mark(d, text->n, &turn)
                                                          : NULL;
    if (mark != NULL) {
        int32_t *known = turn_path_tokens(d->path, turn + 1);
        rc = retoken_continue(h, known, (int)mark->n_tokens, mark->n_bytes, text, &out,
                              err);
        free(known);
    } else {
        rc = hcache_encode(h, text->text, text->n, text->flags, &out.ids, &out.n, err);
    }
    d->ids = out.ids;
    d->n_ids = out.n;
    if (is_other)
        snprintf(d->what, sizeof d->what,
                 "the conversation was computed by another model or build (state "
                 "%.12s..): its text is kept, its state is computed anew",
                 d->path[seen]->fingerprint);
    else if (turn < seen)
        snprintf(d->what, sizeof d->what,
                 "the conversation's text has changed from byte %u on: retokenised at %u",
                 mark != NULL ? mark->n_bytes : 0, mark != NULL ? mark->n_tokens : 0);
    return rc;
}

int draft_render(struct draft *d, struct hcache *h, const struct draft_opts *o,
                 struct fault *f)
{
    struct hcache_err err = {0};
    if (render(d, h, o, f) != 0)
        return -1;
    if (prompt_fits(h, o->truncates, d->text.text, d->text.n, o->param, f) != 0)
        return -1;
    if (tokenize(d, h, &err) != 0)
        return fault_refuse(f, err.code, o->param, "'%s': %s", o->param, err.msg);
    date_locate(h, &d->text, &(struct prompt_ids){d->ids, d->n_ids}, &d->date);
    return 0;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void add_mark(struct turn *t, const char *prompt, size_t n_prompt, const char *text,
                     size_t n, int n_tokens)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_add(c, prompt, n_prompt);
    sha256_add(c, text, n);
    t->mark[t->n_marks++] = (struct turn_mark){.n_bytes = (uint32_t)(n_prompt + n),
                                               .n_tokens = (uint32_t)n_tokens,
                                               .digest = sha256_end(c)};
}

static void add_marks(const struct draft *d, const struct hcache *h,
                      const struct hcache_result *r, struct turn *t)
{
    struct retoken_mark marks[RETOKEN_MAX_MARKS];
    const char *text = d->text.text;
    size_t n_prompt = d->text.n;
    int n = retoken_marks(h, &d->text, r, d->n_ids, marks);
    add_mark(t, text, n_prompt, "", 0, d->n_ids);
    for (int i = 0; i < n; i++) {
        add_mark(t, text, n_prompt, marks[i].text, marks[i].n_text, marks[i].n_tokens);
        free(marks[i].text);
    }
}

/* Returns the key of chunk i as an earlier turn named it; NULL: no earlier turn named it. */
static const struct sha256 *old_key(const struct draft *d, int i)
{
    for (int k = d->n_path - 1; k >= 0; k--) {
        const struct turn *t = d->path[k];
        int first = t->n_kept / 64;
        if (i >= first)
            return i - first < t->n_keys ? &t->keys[i - first] : NULL;
    }
    return NULL;
}

/* Returns how many of the first tokens the new turn shares with its parent. Returns 0 if the last
 * full chunk of them has another key than the parent's, as under another salt. */
static int count_kept(const struct draft *d, const int32_t *ids, int n,
                      const struct sha256 *keys)
{
    int most = d->n_path > 0 ? d->path[d->n_path - 1]->n_tokens : 0, same = 0;
    int32_t *old = turn_path_tokens(d->path, d->n_path);
    while (same < most && same < n && old[same] == ids[same])
        same++;
    free(old);
    if (same < 64)
        return same;
    const struct sha256 *key = old_key(d, same / 64 - 1);
    bool is_shared = key != NULL && memcmp(key, &keys[same / 64 - 1], sizeof *key) == 0;
    return is_shared ? same : 0;
}

void draft_finish(const struct draft *d, const struct hcache *h,
                  const struct hcache_result *r, const char *salt, struct turn *t)
{
    struct hcache_model_info info;
    int n = d->n_ids + r->n_tokens;
    int32_t *ids = xmalloc((size_t)n * sizeof *ids + 1);
    struct sha256 *keys = xmalloc(((size_t)n / 64 + 2) * sizeof *keys);
    hcache_model_info(h, &info);
    memcpy(ids, d->ids, (size_t)d->n_ids * sizeof *ids);
    memcpy(ids + d->n_ids, r->token_ids, (size_t)r->n_tokens * sizeof *ids);
    int n_keys = hcache_chunk_keys(h, r->truncation.context, r->truncation.step,
                                   r->truncation.keep, ids, n, salt, (void *)keys);
    t->parent = d->parent;
    t->conversation = d->conversation;
    t->input = json_text(d->input, 0);
    snprintf(t->moment, sizeof t->moment, "%s", d->date.moment);
    snprintf(t->fingerprint, sizeof t->fingerprint, "%s", info.fingerprint);
    t->n_tokens = n;
    t->n_kept = count_kept(d, ids, n, keys);
    t->n_keys = n_keys - t->n_kept / 64;
    t->tokens = xmalloc((size_t)(n - t->n_kept) * sizeof *ids + 1);
    memcpy(t->tokens, ids + t->n_kept, (size_t)(n - t->n_kept) * sizeof *ids);
    t->keys = xmalloc((size_t)t->n_keys * sizeof *keys + 1);
    memcpy(t->keys, keys + t->n_kept / 64, (size_t)t->n_keys * sizeof *keys);
    add_marks(d, h, r, t);
    free(ids);
    free(keys);
}
