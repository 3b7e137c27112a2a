/* forms.c - see forms.h. */
#include "service/forms.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"
#include "format/json.h"
#include "service/hcache_impl.h"

enum { N_KEPT = 8, MAX_FORM_BYTES = 4 << 20 };

struct kept {
    struct hcache_form_opts o; /* its texts belong to the entry */
    struct form *form;         /* NULL: the entry is empty */
    char *unenforced;
    uint64_t last_use;
};

struct forms {
    const struct tokenizer *tokenizer;
    int32_t n_vocab;
    pthread_mutex_t lock; /* protects all below */
    struct vocab *vocab;  /* made at the first form */
    char (*special)[VOCAB_SPECIAL_BYTES];
    uint64_t clock;
    struct kept kept[N_KEPT];
};

struct forms *forms_create(const struct tokenizer *t, int32_t n_vocab)
{
    struct forms *f = xcalloc(1, sizeof *f);
    f->tokenizer = t;
    f->n_vocab = n_vocab;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

static void kept_clear(struct kept *k)
{
    form_release(k->form);
    free((char *)k->o.text);
    free((char *)k->o.after);
    free(k->unenforced);
    *k = (struct kept){0};
}

void forms_destroy(struct forms *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < N_KEPT; i++)
        kept_clear(&f->kept[i]);
    vocab_destroy(f->vocab);
    free(f->special);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static const char *bytes_of(void *arg, int32_t id, size_t *n)
{
    struct forms *f = arg;
    if (id >= tokenizer_size(f->tokenizer))
        return NULL;
    if (!tokenizer_is_special(f->tokenizer, id))
        return tokenizer_bytes(f->tokenizer, id, n);
    vocab_special(id, f->special[id]);
    *n = VOCAB_SPECIAL_BYTES;
    return f->special[id];
}

static int need_vocab(struct forms *f, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    if (f->special == NULL)
        f->special = mem_try_calloc((size_t)f->n_vocab, sizeof *f->special);
    if (f->special == NULL)
        rc = err_set(err, -ENOMEM, "no memory for the vocabulary's tries");
    if (rc == 0 && f->vocab == NULL)
        rc = vocab_create(&f->vocab, f->n_vocab, bytes_of, f, err);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static bool same_text(const char *a, const char *b)
{
    return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

static bool is_form(const struct kept *k, const struct hcache_form_opts *o)
{
    return k->form != NULL && k->o.kind == o->kind && k->o.loose == o->loose &&
           k->o.n == o->n && memcmp(k->o.text, o->text, o->n) == 0 &&
           same_text(k->o.after, o->after);
}

/* Returns a share of a form that is kept, or NULL. */
static struct form *find(struct forms *f, const struct hcache_form_opts *o,
                         char **unenforced)
{
    struct form *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < N_KEPT && found == NULL; i++) {
        struct kept *k = &f->kept[i];
        if (!is_form(k, o))
            continue;
        k->last_use = ++f->clock;
        found = form_share(k->form);
        *unenforced = k->unenforced == NULL ? NULL : xstrdup(k->unenforced);
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

static void keep(struct forms *f, const struct hcache_form_opts *o, struct form *form,
                 const char *unenforced)
{
    struct kept *oldest = &f->kept[0];
    pthread_mutex_lock(&f->lock);
    for (int i = 1; i < N_KEPT; i++)
        if (f->kept[i].last_use < oldest->last_use)
            oldest = &f->kept[i];
    kept_clear(oldest);
    oldest->o = *o;
    oldest->o.text = xmemdup(o->text, o->n);
    oldest->o.after = o->after == NULL ? NULL : xstrdup(o->after);
    oldest->form = form_share(form);
    oldest->unenforced = unenforced == NULL ? NULL : xstrdup(unenforced);
    oldest->last_use = ++f->clock;
    pthread_mutex_unlock(&f->lock);
}

/* Parses a JSON value of any kind: the only element of the array *root. */
static int parse_value(const struct hcache_form_opts *o, struct json **root,
                       struct err *err)
{
    char *text = mem_try(o->n + 2);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory for a schema of %zu bytes", o->n);
    text[0] = '[';
    memcpy(text + 1, o->text, o->n);
    text[o->n + 1] = ']';
    int rc = json_parse(
        root, text, o->n + 2,
        o->kind == HCACHE_FORM_SCHEMA ? "the JSON schema" : "the list of choices", err);
    free(text);
    if (rc == 0 && json_count(*root) != 1)
        rc = err_set(err, ERR_USAGE, "the JSON schema must be one JSON value");
    return rc == ERR_FORMAT ? err_set(err, ERR_USAGE, "%s", err->msg) : rc;
}

static int compile(const struct hcache_form_opts *o, struct grammar_source *s,
                   struct grammar **out, struct err *err)
{
    struct json *root = NULL;
    const char **texts = NULL;
    int rc = 0;
    if (o->kind == HCACHE_FORM_SCHEMA || o->kind == HCACHE_FORM_CHOICE)
        rc = parse_value(o, &root, err);
    const struct json *v = json_at(root, 0);
    if (rc == 0 && o->kind == HCACHE_FORM_CHOICE) {
        s->n = json_count(v);
        texts = mem_try_calloc(s->n + 1, sizeof *texts);
        if (texts == NULL)
            rc = err_set(err, -ENOMEM, "no memory for a list of %zu choices", s->n);
        for (size_t i = 0; rc == 0 && i < s->n; i++) {
            texts[i] = json_string_of(json_at(v, i), NULL);
            if (texts[i] == NULL)
                rc = err_set(err, ERR_USAGE, "choice %zu is no text", i + 1);
        }
        s->texts = texts;
    }
    s->schema = v;
    if (rc == 0)
        rc = grammar_compile(out, s, err);
    free(texts);
    json_free(root);
    return rc;
}

int forms_get(struct forms *f, const struct hcache_form_opts *o, struct form **out,
              char **unenforced, struct err *err)
{
    static const enum grammar_kind kinds[] = {
        [HCACHE_FORM_SCHEMA] = GRAMMAR_SCHEMA,
        [HCACHE_FORM_GBNF] = GRAMMAR_GBNF,
        [HCACHE_FORM_REGEX] = GRAMMAR_REGEX,
        [HCACHE_FORM_CHOICE] = GRAMMAR_CHOICE,
    };
    struct textbuf loose = {0};
    struct grammar *g;
    char tag[VOCAB_SPECIAL_BYTES];
    *unenforced = NULL;
    if ((unsigned)o->kind >= sizeof kinds / sizeof *kinds)
        return err_set(err, ERR_USAGE, "unknown kind of form %d", (int)o->kind);
    if (o->n > MAX_FORM_BYTES)
        return err_set(err, ERR_LIMIT, "a form has %zu bytes; at most %d are allowed", o->n,
                       MAX_FORM_BYTES);
    int rc = need_vocab(f, err);
    if (rc != 0)
        return rc;
    *out = find(f, o, unenforced);
    if (*out != NULL)
        return 0;
    struct grammar_source s = {.kind = kinds[o->kind],
                               .text = o->text,
                               .n = o->n,
                               .after = o->after,
                               .n_after = o->after == NULL ? 0 : strlen(o->after),
                               .loose = o->loose ? &loose : NULL};
    int32_t id = o->after == NULL ? -1 : tokenizer_find(f->tokenizer, o->after);
    if (id >= 0 && tokenizer_is_special(f->tokenizer, id)) {
        vocab_special(id, tag);
        s.after = tag;
        s.n_after = sizeof tag;
    }
    rc = compile(o, &s, &g, err);
    if (rc == 0) {
        *out = form_create(g, f->vocab);
        if (*out == NULL)
            rc = err_set(err, -ENOMEM, "no memory for the form of an answer");
    }
    if (rc == 0)
        keep(f, o, *out, loose.p);
    if (rc == 0 && loose.p != NULL)
        *unenforced = xstrdup(loose.p);
    textbuf_free(&loose);
    return rc;
}

int hcache_form_create(struct hcache *h, const struct hcache_form_opts *o,
                       struct hcache_form **out, char **unenforced, struct hcache_err *err)
{
    struct form *form;
    char *names = NULL;
    *out = NULL;
    if (h->forms == NULL)
        return err_set(hcache_inner(err), ERR_UNSUPPORTED,
                       "the model has no tokenizer, so its answers cannot have a form");
    int rc = forms_get(h->forms, o, &form, &names, hcache_inner(err));
    if (rc != 0)
        return rc;
    *out = xcalloc(1, sizeof **out);
    (*out)->form = form;
    if (unenforced != NULL)
        *unenforced = names;
    else
        free(names);
    return 0;
}

void hcache_form_free(struct hcache_form *f)
{
    if (f == NULL)
        return;
    form_release(f->form);
    free(f);
}
