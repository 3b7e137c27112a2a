/* tokenizer_steps.c - the steps before and after the BPE model in a tokenizer.json.
 *
 * All four lists have the same form in the file: null, one object with a "type", or a Sequence of
 * such objects. Each list has a table with one short function per type; an unknown type is refused.
 */
#include "bpe/tokenizer_steps.h"

#include <string.h>

struct step_type {
    const char *name;
    int (*read)(struct tokenizer_json *t, const struct json *o, struct err *err);
};

/* Description of one list: its key in the file, the key of a Sequence's children, and its types. */
struct step_list {
    const char *key;
    const char *children;
    const struct step_type *types;
    size_t n_types;
};

static int read_step(struct tokenizer_json *t, const struct step_list *l,
                     const struct json *o, struct err *err)
{
    const char *type = NULL;
    int rc = json_get_string(o, "type", &type, err);
    if (rc != 0)
        return rc;
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = NULL;
        rc = json_get_array(o, l->children, &list, err);
        for (size_t i = 0; i < json_count(list) && rc == 0; i++)
            rc = read_step(t, l, json_at(list, i), err);
        return rc;
    }
    for (size_t i = 0; i < l->n_types; i++) {
        if (strcmp(l->types[i].name, type) != 0)
            continue;
        if ((rc = l->types[i].read(t, o, err)) != 0)
            err_wrap(err, "%s", type);
        return rc;
    }
    return err_set(err, ERR_UNSUPPORTED, "type '%s' is not supported", type);
}

static int read_list(struct tokenizer_json *t, const struct step_list *l,
                     const struct json *root, struct err *err)
{
    const struct json *o = NULL;
    int rc = json_opt_object(root, l->key, &o, err);
    if (rc == 0 && o != NULL && (rc = read_step(t, l, o, err)) != 0)
        err_wrap(err, "%s", l->key);
    return rc;
}

/* --- fields that several steps have ------------------------------------------------------- */

static int read_text(struct tokenizer_json *t, const struct json *o, const char *key,
                     struct tokenizer_text *out, struct err *err)
{
    const char *s = NULL;
    int rc = json_get_string(o, key, &s, err);
    if (rc == 0)
        *out = tokenizer_json_copy(t, s, strlen(s));
    return rc;
}

/* Reads {"String": "..."} or {"Regex": "..."}; if is_regex is NULL, only a String is allowed. */
static int read_pattern(struct tokenizer_json *t, const struct json *o,
                        struct tokenizer_text *out, bool *is_regex, struct err *err)
{
    const struct json *p = NULL;
    int rc = json_get_object(o, "pattern", &p, err);
    if (rc != 0)
        return rc;
    bool regex = json_member(p, "Regex") != NULL;
    if (regex && is_regex == NULL)
        return err_set(err, ERR_UNSUPPORTED, "a 'pattern' with a 'Regex' is not supported");
    if ((rc = read_text(t, p, regex ? "Regex" : "String", out, err)) != 0)
        return rc;
    if (out->n == 0)
        return err_set(err, ERR_FORMAT, "'pattern' is empty");
    if (is_regex != NULL)
        *is_regex = regex;
    return 0;
}

static int read_behavior(const struct json *o, enum split_behavior *out, struct err *err)
{
    static const char *const names[] = {
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *s = NULL;
    int rc = json_get_string(o, "behavior", &s, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], s) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "behavior '%s' is not supported", s);
}

/* Reads Metaspace's prepend_scheme, or add_prefix_space of older files. */
static int read_prepend(const struct json *o, enum prepend_scheme *out, struct err *err)
{
    const char *s = NULL;
    bool add = true;
    int rc;
    if ((rc = json_opt_string(o, "prepend_scheme", &s, err)) != 0 ||
        (rc = json_opt_bool(o, "add_prefix_space", &add, err)) != 0)
        return rc;
    if (s == NULL)
        *out = add ? PREPEND_ALWAYS : PREPEND_NEVER;
    else if (strcmp(s, "always") == 0)
        *out = PREPEND_ALWAYS;
    else if (strcmp(s, "first") == 0)
        *out = PREPEND_FIRST;
    else if (strcmp(s, "never") == 0)
        *out = PREPEND_NEVER;
    else
        return err_set(err, ERR_UNSUPPORTED, "prepend_scheme '%s' is not supported", s);
    if (s != NULL && !add && *out != PREPEND_NEVER)
        return err_set(err, ERR_FORMAT, "prepend_scheme '%s' contradicts add_prefix_space",
                       s);
    return 0;
}

static bool room_for_step(int n_steps, struct err *err)
{
    if (n_steps == TOKENIZER_MAX_STEPS)
        err_set(err, ERR_UNSUPPORTED, "more than %d steps", TOKENIZER_MAX_STEPS);
    return n_steps < TOKENIZER_MAX_STEPS;
}

/* --- normalizers -------------------------------------------------------------------------- */

/* Appends a step to the list and returns it. Returns NULL, with the message set, if there are too
 * many. */
static struct normalizer_step *push_normalizer(struct tokenizer_json *t,
                                               enum normalizer_kind kind, struct err *err)
{
    if (!room_for_step(t->n_normalizers, err))
        return NULL;
    struct normalizer_step *s = &t->normalizers[t->n_normalizers++];
    s->kind = kind;
    return s;
}

static int read_normalizer_prepend(struct tokenizer_json *t, const struct json *o,
                                   struct err *err)
{
    struct normalizer_step *s = push_normalizer(t, NORMALIZER_PREPEND, err);
    return s == NULL ? ERR_UNSUPPORTED : read_text(t, o, "prepend", &s->text, err);
}

static int read_normalizer_replace(struct tokenizer_json *t, const struct json *o,
                                   struct err *err)
{
    struct normalizer_step *s = push_normalizer(t, NORMALIZER_REPLACE, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int rc = read_pattern(t, o, &s->pattern, &s->is_regex, err);
    return rc != 0 ? rc : read_text(t, o, "content", &s->text, err);
}

static int read_nfc(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    (void)o;
    return push_normalizer(t, NORMALIZER_NFC, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_nfd(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    (void)o;
    return push_normalizer(t, NORMALIZER_NFD, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_nfkc(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    (void)o;
    return push_normalizer(t, NORMALIZER_NFKC, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_nfkd(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    (void)o;
    return push_normalizer(t, NORMALIZER_NFKD, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static const struct step_type normalizer_types[] = {
    {"Prepend", read_normalizer_prepend},
    {"Replace", read_normalizer_replace},
    {"NFC", read_nfc},
    {"NFD", read_nfd},
    {"NFKC", read_nfkc},
    {"NFKD", read_nfkd},
};

/* --- pre-tokenizers ----------------------------------------------------------------------- */

/* Appends a step to the list and returns it. Returns NULL, with the message set, if there are too
 * many. */
static struct pretokenizer_step *
push_pretokenizer(struct tokenizer_json *t, enum pretokenizer_kind kind, struct err *err)
{
    if (!room_for_step(t->n_pretokenizers, err))
        return NULL;
    struct pretokenizer_step *s = &t->pretokenizers[t->n_pretokenizers++];
    s->kind = kind;
    return s;
}

static int read_split(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct pretokenizer_step *s = push_pretokenizer(t, PRETOKENIZER_SPLIT, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int rc;
    if ((rc = read_pattern(t, o, &s->pattern, &s->is_regex, err)) != 0 ||
        (rc = read_behavior(o, &s->behavior, err)) != 0)
        return rc;
    return json_opt_bool(o, "invert", &s->invert, err);
}

static int read_byte_level(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct pretokenizer_step *s = push_pretokenizer(t, PRETOKENIZER_BYTE_LEVEL, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    s->use_regex = true; /* the default for files that are older than the field */
    int rc = json_get_bool(o, "add_prefix_space", &s->add_prefix_space, err);
    return rc != 0 ? rc : json_opt_bool(o, "use_regex", &s->use_regex, err);
}

static int read_metaspace(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct pretokenizer_step *s = push_pretokenizer(t, PRETOKENIZER_METASPACE, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int rc;
    if ((rc = read_text(t, o, "replacement", &s->text, err)) != 0 ||
        (rc = read_prepend(o, &s->prepend, err)) != 0)
        return rc;
    s->split = true;
    return json_opt_bool(o, "split", &s->split, err);
}

static int read_digits(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct pretokenizer_step *s = push_pretokenizer(t, PRETOKENIZER_DIGITS, err);
    return s == NULL ? ERR_UNSUPPORTED
                     : json_get_bool(o, "individual_digits", &s->individual, err);
}

static int read_punctuation(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct pretokenizer_step *s = push_pretokenizer(t, PRETOKENIZER_PUNCTUATION, err);
    return s == NULL ? ERR_UNSUPPORTED : read_behavior(o, &s->behavior, err);
}

static const struct step_type pretokenizer_types[] = {
    {"Split", read_split},
    {"ByteLevel", read_byte_level},
    {"Metaspace", read_metaspace},
    {"Digits", read_digits},
    {"Punctuation", read_punctuation},
};

/* --- decoders ----------------------------------------------------------------------------- */

/* Appends a step to the list and returns it. Returns NULL, with the message set, if there are too
 * many. */
static struct decoder_step *push_decoder(struct tokenizer_json *t, enum decoder_kind kind,
                                         struct err *err)
{
    if (!room_for_step(t->n_decoders, err))
        return NULL;
    struct decoder_step *s = &t->decoders[t->n_decoders++];
    s->kind = kind;
    return s;
}

static int read_decoder_replace(struct tokenizer_json *t, const struct json *o,
                                struct err *err)
{
    struct decoder_step *s = push_decoder(t, DECODER_REPLACE, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int rc = read_pattern(t, o, &s->pattern, NULL, err);
    return rc != 0 ? rc : read_text(t, o, "content", &s->text, err);
}

static int read_byte_fallback(struct tokenizer_json *t, const struct json *o,
                              struct err *err)
{
    (void)o;
    return push_decoder(t, DECODER_BYTE_FALLBACK, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_fuse(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    (void)o;
    return push_decoder(t, DECODER_FUSE, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_strip(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    struct decoder_step *s = push_decoder(t, DECODER_STRIP, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int64_t start, stop;
    int rc;
    if ((rc = read_text(t, o, "content", &s->text, err)) != 0 ||
        (rc = json_get_int(o, "start", 0, 1000, &start, err)) != 0 ||
        (rc = json_get_int(o, "stop", 0, 1000, &stop, err)) != 0)
        return rc;
    s->start = (int32_t)start;
    s->stop = (int32_t)stop;
    return 0;
}

static int read_decoder_byte_level(struct tokenizer_json *t, const struct json *o,
                                   struct err *err)
{
    (void)o;
    return push_decoder(t, DECODER_BYTE_LEVEL, err) != NULL ? 0 : ERR_UNSUPPORTED;
}

static int read_decoder_metaspace(struct tokenizer_json *t, const struct json *o,
                                  struct err *err)
{
    struct decoder_step *s = push_decoder(t, DECODER_METASPACE, err);
    if (s == NULL)
        return ERR_UNSUPPORTED;
    int rc;
    if ((rc = read_text(t, o, "replacement", &s->text, err)) != 0)
        return rc;
    return read_prepend(o, &s->prepend, err);
}

static const struct step_type decoder_types[] = {
    {"Replace", read_decoder_replace},
    {"ByteFallback", read_byte_fallback},
    {"Fuse", read_fuse},
    {"Strip", read_strip},
    {"ByteLevel", read_decoder_byte_level},
    {"Metaspace", read_decoder_metaspace},
};

/* --- post-processors ---------------------------------------------------------------------- */

/* Appends the ids of one special token of the template. */
static int add_special(struct tokenizer_json *t, const struct json *table, const char *name,
                       int32_t *ids, int *n_ids, struct err *err)
{
    const struct json *list = json_member(json_member(table, name), "ids");
    if (json_kind(list) != JSON_KIND_ARRAY)
        return err_set(err, ERR_FORMAT, "'special_tokens' has no ids for '%s'", name);
    for (size_t i = 0; i < json_count(list); i++) {
        int64_t id;
        if (!json_int_of(json_at(list, i), &id) || id < 0 || id >= t->n_ids ||
            t->tokens[id].s == NULL)
            return err_set(err, ERR_FORMAT,
                           "'special_tokens': '%s' has an id without a token", name);
        if (*n_ids == TOKENIZER_MAX_TEMPLATE)
            return err_set(err, ERR_UNSUPPORTED, "more than %d special tokens",
                           TOKENIZER_MAX_TEMPLATE);
        ids[(*n_ids)++] = (int32_t)id;
    }
    return 0;
}

/* Reads the template of a single text: special tokens, the text "A", special tokens. The template
 * for pairs of texts is not used. */
static int read_template(struct tokenizer_json *t, const struct json *o, struct err *err)
{
    const struct json *single = NULL, *table = NULL;
    int rc;
    if (t->has_template)
        return err_set(err, ERR_UNSUPPORTED, "a second template is not supported");
    if ((rc = json_get_array(o, "single", &single, err)) != 0 ||
        (rc = json_opt_object(o, "special_tokens", &table, err)) != 0)
        return rc;
    t->has_template = true;
    bool seen_text = false;
    for (size_t i = 0; i < json_count(single) && rc == 0; i++) {
        const struct json *special = json_member(json_at(single, i), "SpecialToken");
        const struct json *text = json_member(json_at(single, i), "Sequence");
        const char *name = NULL;
        if (special != NULL && (rc = json_get_string(special, "id", &name, err)) == 0)
            rc = add_special(t, table, name, seen_text ? t->suffix : t->prefix,
                             seen_text ? &t->n_suffix : &t->n_prefix, err);
        else if (text != NULL && !seen_text)
            seen_text = true;
        else if (rc == 0)
            rc = err_set(err, ERR_UNSUPPORTED, "'single'[%zu] is not supported", i);
    }
    if (rc == 0 && !seen_text)
        rc = err_set(err, ERR_FORMAT, "'single' has no place for the text");
    return rc;
}

/* Accepts a step that changes offsets and no ids: this program does not use offsets. */
static int read_offsets_only(struct tokenizer_json *t, const struct json *o,
                             struct err *err)
{
    (void)t;
    (void)o;
    (void)err;
    return 0;
}

static const struct step_type processor_types[] = {
    {"TemplateProcessing", read_template},
    {"ByteLevel", read_offsets_only},
};

/* --- all of them -------------------------------------------------------------------------- */

#define LIST(key, children, types)                                                         \
    {                                                                                      \
        key, children, types, sizeof(types) / sizeof((types)[0])                           \
    }

int tokenizer_json_read_steps(struct tokenizer_json *t, const struct json *root,
                              struct err *err)
{
    static const struct step_list lists[] = {
        LIST("normalizer", "normalizers", normalizer_types),
        LIST("pre_tokenizer", "pretokenizers", pretokenizer_types),
        LIST("decoder", "decoders", decoder_types),
        LIST("post_processor", "processors", processor_types),
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && rc == 0; i++)
        rc = read_list(t, &lists[i], root, err);
    return rc;
}
