/* schema.c - see schema.h: the entry, the parts of a document, and references. */
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/textbuf.h"

void schema_refuse(struct schema *c, const char *what)
{
    if (c->loose == NULL)
        build_fault(c->b, ERR_UNSUPPORTED, "the schema's %s cannot be enforced", what);
    size_t n = strlen(what);
    for (const char *at = c->loose->p; at != NULL && (at = strstr(at, what)) != NULL;
         at += n)
        if ((at == c->loose->p || at[-1] == ' ') && (at[n] == 0 || at[n] == ','))
            return;
    textbuf_addf(c->loose, "%s%s", c->loose->n > 0 ? ", " : "", what);
}

/* --- addresses (RFC 3986, without dot segments beyond "./" and "../") --------------- */

static char *text_of(struct schema *c, const char *s, size_t n)
{
    char *p = build_alloc(c->b, n + 1);
    memcpy(p, s, n);
    return p;
}

static size_t scheme_length(const char *uri)
{
    size_t n = strspn(uri,
                      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return n > 0 && uri[n] == ':' ? n + 1 : 0;
}

/* Returns ref resolved against base, without a fragment. */
static const char *join(struct schema *c, const char *base, const char *ref)
{
    size_t n_ref = strcspn(ref, "#"), n_scheme = scheme_length(base);
    size_t n_host = n_scheme, n_path;
    if (n_ref == 0)
        return base;
    if (scheme_length(ref) > 0)
        return text_of(c, ref, n_ref);
    if (strncmp(base + n_scheme, "//", 2) == 0)
        n_host += 2 + strcspn(base + n_scheme + 2, "/?");
    if (strncmp(ref, "//", 2) == 0) {
        n_path = n_scheme;
    } else if (ref[0] == '/') {
        n_path = n_host;
    } else {
        n_path = n_host + strcspn(base + n_host, "?");
        while (n_path > n_host && base[n_path - 1] != '/')
            n_path--;
    }
    for (;;) {
        if (strncmp(ref, "./", 2) == 0) {
            ref += 2;
            n_ref -= 2;
        } else if (strncmp(ref, "../", 3) == 0) {
            ref += 3;
            n_ref -= 3;
            while (n_path > n_host + 1 && base[--n_path - 1] != '/')
                ;
        } else {
            break;
        }
    }
    char *out = build_alloc(c->b, n_path + n_ref + 2);
    memcpy(out, base, n_path);
    if (n_path == n_host && n_host > n_scheme && ref[0] != '/')
        out[n_path++] = '/';
    memcpy(out + n_path, ref, n_ref);
    return out;
}

/* --- the parts of a document -------------------------------------------------------- */

static const struct resource *find_resource(const struct schema *c, const char *uri)
{
    for (uint32_t i = 0; i < c->n_resources; i++)
        if (strcmp(c->resources[i]->uri, uri) == 0)
            return c->resources[i];
    return NULL;
}

const struct resource *schema_base(const struct schema *c, const struct json *schema,
                                   const struct resource *base)
{
    for (uint32_t i = 0; i < c->n_resources; i++)
        if (c->resources[i]->root == schema)
            return c->resources[i];
    return base;
}

static const struct resource *resource_new(struct schema *c, const char *uri,
                                           const struct json *root)
{
    if (c->n_resources == sizeof c->resources / sizeof *c->resources)
        build_fault(c->b, ERR_LIMIT, "the schema has more than %u parts with an $id",
                    c->n_resources);
    struct resource *r = build_alloc(c->b, sizeof *r);
    *r = (struct resource){.uri = uri, .root = root};
    c->resources[c->n_resources++] = r;
    return r;
}

static void anchor_new(struct schema *c, const struct resource *base, const char *name,
                       const struct json *schema, bool dynamic)
{
    struct anchor *a = build_alloc(c->b, sizeof *a);
    *a = (struct anchor){.next = c->anchors,
                         .base = base,
                         .name = name,
                         .schema = schema,
                         .dynamic = dynamic};
    c->anchors = a;
}

static const char *string_member(const struct json *v, const char *key)
{
    return json_string_of(json_member(v, key), NULL);
}

static void survey(struct schema *c, const struct json *v, const struct resource *base,
                   int depth);

/* Surveys the schemas below a keyword; keywords that hold none are left alone. */
static void survey_keyword(struct schema *c, const char *key, const struct json *v,
                           const struct resource *base, int depth)
{
    static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                       "definitions", "dependentSchemas",  "dependencies"};
    static const char *const schemas[] = {"allOf",
                                          "anyOf",
                                          "oneOf",
                                          "prefixItems",
                                          "items",
                                          "additionalItems",
                                          "additionalProperties",
                                          "unevaluatedItems",
                                          "unevaluatedProperties",
                                          "contains",
                                          "propertyNames",
                                          "not",
                                          "if",
                                          "then",
                                          "else",
                                          "contentSchema"};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        if (strcmp(key, maps[i]) == 0 && json_kind(v) == JSON_KIND_OBJECT)
            for (struct json_iter it = json_begin(v); json_next(&it);)
                survey(c, it.value, base, depth);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        if (strcmp(key, schemas[i]) != 0)
            continue;
        if (json_kind(v) != JSON_KIND_ARRAY)
            survey(c, v, base, depth);
        for (size_t k = 0; json_kind(v) == JSON_KIND_ARRAY && k < json_count(v); k++)
            survey(c, json_at(v, k), base, depth);
    }
}

/* Notes the addresses and anchors of a schema and all below it. */
static void survey(struct schema *c, const struct json *v, const struct resource *base,
                   int depth)
{
    if (json_kind(v) != JSON_KIND_OBJECT)
        return;
    const char *id = string_member(v, c->draft == 4 ? "id" : "$id");
    bool alone = c->draft > 7 || json_member(v, "$ref") == NULL || depth == 0;
    if (id != NULL && alone && id[0] == '#' && id[1] != 0)
        anchor_new(c, base, id + 1, v, false); /* the anchor of draft 7 and before */
    else if (id != NULL && alone && id[0] != 0 && id[0] != '#')
        base = resource_new(c, join(c, base->uri, id), v);
    const char *anchor = string_member(v, "$anchor");
    const char *dynamic = string_member(v, "$dynamicAnchor");
    if (anchor != NULL)
        anchor_new(c, base, anchor, v, false);
    if (dynamic != NULL)
        anchor_new(c, base, dynamic, v, true);
    for (struct json_iter it = json_begin(v); json_next(&it);)
        survey_keyword(c, it.key, it.value, base, depth + 1);
}

/* --- references --------------------------------------------------------------------- */

static int hex_of(char ch)
{
    char low = (char)(ch | 0x20);
    return ch >= '0' && ch <= '9'     ? ch - '0'
           : low >= 'a' && low <= 'f' ? low - 'a' + 10
                                      : -1;
}

/* Follows a JSON pointer, percent-encoded as in a fragment. */
static struct want follow(struct schema *c, const struct resource *base,
                          const char *pointer, const char *ref)
{
    const struct json *at = base->root;
    for (const char *p = pointer; *p != 0;) {
        size_t n = 0;
        char *key = build_alloc(c->b, strlen(p) + 1);
        for (p++; *p != 0 && *p != '/'; p++) {
            char ch = *p;
            if (ch == '%' && hex_of(p[1]) >= 0 && hex_of(p[2]) >= 0) {
                ch = (char)(hex_of(p[1]) * 16 + hex_of(p[2]));
                p += 2;
            }
            key[n++] = ch;
        }
        key[n] = 0;
        size_t k = 0;
        for (size_t i = 0; i < n; i++) {
            bool tilde = key[i] == '~' && (key[i + 1] == '0' || key[i + 1] == '1');
            key[k++] = !tilde ? key[i] : key[++i] == '0' ? '~' : '/';
        }
        key[k] = 0;
        if (json_kind(at) == JSON_KIND_ARRAY) {
            char *end;
            unsigned long i = strtoul(key, &end, 10);
            at = *key == 0 || *end != 0 ? NULL : json_at(at, i);
        } else {
            at = json_member(at, key);
        }
        if (at == NULL)
            build_fault(c->b, ERR_USAGE, "the schema's $ref \"%.200s\" leads nowhere", ref);
        base = schema_base(c, at, base);
    }
    return (struct want){.schema = at, .base = base};
}

struct want schema_resolve(struct schema *c, const struct resource *base, const char *ref)
{
    const char *fragment = strchr(ref, '#');
    const struct resource *to = find_resource(c, join(c, base->uri, ref));
    fragment = fragment == NULL ? "" : fragment + 1;
    if (ref[0] == '#' || ref[0] == 0)
        to = base;
    if (to == NULL)
        build_fault(c->b, ERR_UNSUPPORTED,
                    "the schema's $ref \"%.200s\" leads out of the document, and nothing "
                    "is fetched",
                    ref);
    if (fragment[0] == 0 || fragment[0] == '/')
        return follow(c, to, fragment, ref);
    for (const struct anchor *a = c->anchors; a != NULL; a = a->next)
        if (a->base == to && strcmp(a->name, fragment) == 0)
            return (struct want){.schema = a->schema,
                                 .base = schema_base(c, a->schema, to)};
    build_fault(c->b, ERR_USAGE, "the schema's $ref \"%.200s\" names no anchor", ref);
}

/* --- the entry ---------------------------------------------------------------------- */

static int draft_of(struct schema *c, const struct json *schema)
{
    static const struct {
        const char *in;
        int draft;
    } drafts[] = {{"draft-03", 4},
                  {"draft-04", 4},
                  {"draft-06", 6},
                  {"draft-07", 7},
                  {"2019-09", 2019}};
    const char *uri = string_member(schema, "$schema");
    if (uri != NULL && strstr(uri, "json-schema.org") == NULL)
        schema_refuse(c, "$schema");
    for (size_t i = 0; uri != NULL && i < sizeof drafts / sizeof *drafts; i++)
        if (strstr(uri, drafts[i].in) != NULL)
            return drafts[i].draft;
    return 2020;
}

uint32_t schema_root(struct build *b, const struct json *schema, const struct json *also,
                     struct textbuf *loose)
{
    struct schema *c = build_alloc(b, sizeof *c);
    struct goal g = {0};
    c->b = b;
    c->loose = loose;
    c->draft = draft_of(c, schema);
    const struct resource *root = resource_new(c, "", schema);
    survey(c, schema, root, 0);
    /* A document with an $id is its own second resource. */
    bool named = c->n_resources > 1 && c->resources[1]->root == schema;
    goal_add(c, &g,
             (struct want){.schema = schema, .base = named ? c->resources[1] : root});
    if (also != NULL)
        goal_add(c, &g, (struct want){.schema = also, .base = root});
    uint32_t rule = schema_rule(c, &g, false);
    schema_emit_all(c);
    return rule;
}
