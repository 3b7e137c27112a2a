/* store_turns.c - see store_turns.h. */
#include "apps/store_turns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/json.h"
#include "store/store.h"

/* --- out -------------------------------------------------------------------------------------- */

static struct json *tokens_json(const struct turn *t)
{
    struct json *list = json_new_array();
    for (int i = 0; i < t->n_tokens - t->n_kept; i++)
        json_push_int(list, t->tokens[i]);
    return list;
}

static struct json *marks_json(const struct turn *t)
{
    struct json *list = json_new_array();
    char hex[65];
    for (int i = 0; i < t->n_marks; i++) {
        sha256_hex(&t->mark[i].digest, hex);
        json_push(list, json_make("[%ld, %ld, %s]", (int64_t)t->mark[i].n_bytes,
                                  t->mark[i].n_tokens, hex));
    }
    return list;
}

static struct json *turn_json(const struct turn *t)
{
    struct json *keys = json_new_array();
    char hex[65];
    for (int i = 0; i < t->n_keys; i++) {
        sha256_hex(&t->keys[i], hex);
        json_push_string(keys, hex);
    }
    return json_make("{name: %s, created: %ld, is_visible: %p, answer: %s, input: %s, "
                     "output: %s, restoration: %s, fingerprint: %s, moment: %s, "
                     "n_kept: %d, tokens: %p, marks: %p, keys: %p}",
                     t->name, t->created_s, json_new_bool(t->is_visible), t->answer,
                     t->input, t->output, t->restoration, t->fingerprint, t->moment,
                     t->n_kept, tokens_json(t), marks_json(t), keys);
}

/* Adds a turn to the list. A path has neither answers nor restorations, so a visible turn is read
 * again. */
static int push_turn(struct conversations *c, const char *tenant, const struct turn *t,
                     struct json *list, struct err *err)
{
    struct turn *whole = NULL;
    int rc = t->is_visible ? turn_find(c, tenant, t->name, &whole, err) : 0;
    if (rc == 0) {
        struct turn both = *t;
        both.answer = whole != NULL ? whole->answer : NULL;
        both.restoration = whole != NULL ? whole->restoration : NULL;
        json_push(list, turn_json(&both));
    }
    turn_free(whole);
    return rc;
}

/* Finds the last turn of a conversation or response. Fills *v if the name is a conversation's. */
static int find_end(struct conversations *c, const char *tenant, const char *name,
                    struct json *out, int64_t *row, struct err *err)
{
    struct conversation v = {0};
    struct turn *t = NULL;
    struct err unused = {0};
    if (turn_find(c, tenant, name, &t, &unused) == 0) {
        *row = t->row;
        turn_free(t);
        json_put_null(out, "conversation");
        return 0;
    }
    int rc = conversation_find(c, tenant, name, &v, err);
    if (rc != 0)
        return rc;
    json_extend(out, "{conversation: {name: %s, title: %s, metadata: %s}}", v.name, v.title,
                v.metadata);
    *row = v.head;
    conversation_deinit(&v);
    return 0;
}

static void owner_text(const char *tenant, char text[17])
{
    snprintf(text, 17, "%016" PRIx64, store_owner(tenant));
}

/* Returns whether rc says that no conversation here has the name. -EAGAIN: the name belongs to
 * another server. */
static bool is_nobodys(int rc)
{
    return rc == ERR_NOT_FOUND || rc == -EAGAIN;
}

/* Like find_end, for the first tenant that has the name. Sets *tenant. */
static int find_owner(struct conversations *c, const struct tenant_names *tenants,
                      const char *name, const char **tenant, struct json *out, int64_t *row,
                      struct err *err)
{
    char owner[17];
    int rc = ERR_NOT_FOUND;
    for (int i = 0; is_nobodys(rc) && i < tenants->n; i++) {
        *tenant = tenants->of[i];
        rc = find_end(c, *tenant, name, out, row, err);
    }
    owner_text(*tenant, owner);
    json_put_string(out, "owner", owner);
    if (!is_nobodys(rc))
        return rc;
    return err_set(err, ERR_NOT_FOUND, "there is no conversation or response '%.80s' of %s",
                   name,
                   tenants->n > 1 ? "clients with these keys, nor of one without a key"
                                  : "a client without an API key: see --api-key-file");
}

int turns_export(struct conversations *c, const struct tenant_names *tenants,
                 const char *name, char **text, struct sha256 **keys, int *n_keys,
                 int *n_turns, struct err *err)
{
    struct json *o = json_new_object(), *list = json_new_array();
    struct turn **path = NULL;
    const char *tenant = "";
    int64_t row = 0;
    int n = 0, rc = find_owner(c, tenants, name, &tenant, o, &row, err);
    *keys = NULL;
    *n_keys = 0;
    if (rc == 0 && row != 0)
        rc = turn_path(c, row, &path, &n, err);
    for (int i = 0; rc == 0 && i < n; i++) {
        size_t all = (size_t)(*n_keys + path[i]->n_keys);
        *keys = xrealloc(*keys, (all + 1) * sizeof **keys);
        for (int k = 0; k < path[i]->n_keys; k++)
            (*keys)[(*n_keys)++] = path[i]->keys[k];
        rc = push_turn(c, tenant, path[i], list, err);
    }
    json_put(o, "turns", list);
    *n_turns = n;
    *text = rc == 0 ? json_text(o, 0) : NULL;
    json_free(o);
    turn_path_free(path, n);
    if (rc != 0) {
        free(*keys);
        *keys = NULL;
    }
    return rc;
}

/* --- in --------------------------------------------------------------------------------------- */

static bool hex_key(const char *text, struct sha256 *out)
{
    if (text == NULL || strlen(text) != 2 * sizeof out->b ||
        strspn(text, "0123456789abcdef") != 2 * sizeof out->b)
        return false;
    for (size_t i = 0; i < sizeof out->b; i++) {
        const char two[3] = {text[2 * i], text[2 * i + 1], 0};
        out->b[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return true;
}

static char *opt_text(const struct json *o, const char *key)
{
    const char *s = json_string_of(json_member(o, key), NULL);
    return s != NULL ? xstrdup(s) : NULL;
}

static int bad(struct err *err, const char *what)
{
    return err_set(err, ERR_FORMAT, "a turn has no valid \"%s\"", what);
}

static int read_tokens(const struct json *o, struct turn *t, struct err *err)
{
    const struct json *tokens = json_member(o, "tokens");
    int64_t n_kept, id;
    size_t n = json_count(tokens);
    if (!json_int_of(json_member(o, "n_kept"), &n_kept) || n_kept < 0 ||
        n_kept > INT32_MAX || n > (size_t)(INT32_MAX - n_kept))
        return bad(err, "n_kept");
    t->n_kept = (int)n_kept;
    t->n_tokens = t->n_kept + (int)n;
    t->tokens = xcalloc(n + 1, sizeof t->tokens[0]);
    for (size_t i = 0; i < n; i++) {
        if (!json_int_of(json_at(tokens, i), &id) || id < 0 || id > INT32_MAX)
            return bad(err, "tokens");
        t->tokens[i] = (int32_t)id;
    }
    return 0;
}

static int read_marks(const struct json *o, struct turn *t, struct err *err)
{
    const struct json *marks = json_member(o, "marks");
    if (json_count(marks) > TURN_MAX_MARKS)
        return bad(err, "marks");
    for (size_t i = 0; i < json_count(marks); i++) {
        const struct json *one = json_at(marks, i);
        int64_t n_bytes, n_tokens;
        if (json_count(one) != 3 || !json_int_of(json_at(one, 0), &n_bytes) ||
            !json_int_of(json_at(one, 1), &n_tokens) || n_bytes < 0 ||
            n_bytes > UINT32_MAX || n_tokens < 0 || n_tokens > UINT32_MAX ||
            !hex_key(json_string_of(json_at(one, 2), NULL), &t->mark[i].digest))
            return bad(err, "marks");
        t->mark[i].n_bytes = (uint32_t)n_bytes;
        t->mark[i].n_tokens = (uint32_t)n_tokens;
        t->n_marks++;
    }
    return 0;
}

static int read_keys(const struct json *o, struct turn *t, struct err *err)
{
    const struct json *keys = json_member(o, "keys");
    t->keys = xcalloc(json_count(keys) + 1, sizeof t->keys[0]);
    for (size_t i = 0; i < json_count(keys); i++)
        if (!hex_key(json_string_of(json_at(keys, i), NULL), &t->keys[t->n_keys++]))
            return bad(err, "keys");
    return 0;
}

static int read_turn(const struct json *o, struct turn *t, struct err *err)
{
    const char *name = json_string_of(json_member(o, "name"), NULL),
               *fingerprint = json_string_of(json_member(o, "fingerprint"), NULL);
    if (name == NULL || strlen(name) >= sizeof t->name)
        return bad(err, "name");
    if (fingerprint == NULL || strlen(fingerprint) >= sizeof t->fingerprint)
        return bad(err, "fingerprint");
    memcpy(t->name, name, strlen(name) + 1);
    memcpy(t->fingerprint, fingerprint, strlen(fingerprint) + 1);
    const char *moment = json_string_of(json_member(o, "moment"), NULL);
    if (moment != NULL && strlen(moment) >= sizeof t->moment)
        return bad(err, "moment");
    snprintf(t->moment, sizeof t->moment, "%s", moment != NULL ? moment : "");
    t->answer = opt_text(o, "answer");
    t->input = opt_text(o, "input");
    t->output = opt_text(o, "output");
    t->restoration = opt_text(o, "restoration");
    if (t->input == NULL || t->output == NULL ||
        !json_int_of(json_member(o, "created"), &t->created_s) ||
        !json_bool_of(json_member(o, "is_visible"), &t->is_visible))
        return bad(err, "input");
    int rc = read_tokens(o, t, err);
    if (rc == 0)
        rc = read_marks(o, t, err);
    return rc == 0 ? read_keys(o, t, err) : rc;
}

/* State of an import. */
struct import {
    struct conversations *c;
    const char *tenant;
    struct conversation v; /* row 0: the file is about turns without a conversation */
    struct turn **path;    /* [n_known] turns that already existed */
    int n_known;
    int64_t row;  /* row of the last turn so far */
    int n_tokens; /* tokens of the last turn so far */
    int n_added;
};

/* Finds or creates the conversation, and reads the turns that it already has. */
static int find_begin(struct import *m, const struct json *o, struct err *err)
{
    const char *name = json_string_of(json_member(o, "name"), NULL);
    struct err unused = {0};
    if (name == NULL || strlen(name) >= sizeof m->v.name)
        return err_set(err, ERR_FORMAT, "the conversation has no name");
    if (conversation_find(m->c, m->tenant, name, &m->v, &unused) == 0)
        return m->v.head == 0 ? 0 : turn_path(m->c, m->v.head, &m->path, &m->n_known, err);
    return conversation_add(
        m->c, m->tenant, name, json_string_of(json_member(o, "title"), NULL),
        json_string_of(json_member(o, "metadata"), NULL), 0, &m->v, err);
}

/* Checks that a turn has the properties that conversations.h requires. */
static int check_turn(const struct import *m, const struct turn *t, struct err *err)
{
    if (t->n_kept > m->n_tokens)
        return bad(err, "n_kept");
    return t->is_visible || m->v.row != 0
               ? 0
               : err_set(err, ERR_UNSUPPORTED,
                         "'%s' was deleted and is only kept as part of a conversation: "
                         "export the conversation",
                         t->name);
}

/* Adds turn i after the last one, unless the turn exists already. */
static int take_turn(struct import *m, const struct json *o, int i, struct err *err)
{
    struct turn *t = xcalloc(1, sizeof *t), *there = NULL;
    struct err unused = {0};
    bool has_branched = false;
    int rc = read_turn(o, t, err);
    if (rc == 0)
        rc = check_turn(m, t, err);
    m->n_tokens = t->n_tokens;
    if (rc == 0 && i < m->n_known) {
        rc = strcmp(m->path[i]->name, t->name) == 0
                 ? 0
                 : err_set(err, ERR_MISMATCH,
                           "the conversation '%s' exists and has continued differently",
                           m->v.name);
        m->row = m->path[i]->row;
    } else if (rc == 0 && m->v.row == 0 &&
               turn_find(m->c, m->tenant, t->name, &there, &unused) == 0) {
        m->row = there->row;
    } else if (rc == 0) {
        t->parent = m->row;
        t->conversation = m->v.row;
        rc = turn_add(m->c, m->tenant, t, NULL, &has_branched, err);
        m->row = t->row;
        m->n_added += rc == 0;
    }
    turn_free(there);
    turn_free(t);
    return rc;
}

/* Sets m->tenant to the owner of the turns. Files of earlier builds have no owner: those builds
 * exported only conversations of requests without a key. */
static int find_tenant(struct import *m, const struct tenant_names *tenants,
                       const struct json *root, struct err *err)
{
    const char *owner = json_string_of(json_member(root, "owner"), NULL);
    char one[17];
    for (int i = 0; i < tenants->n; i++) {
        m->tenant = tenants->of[i];
        owner_text(m->tenant, one);
        if (owner == NULL || strcmp(one, owner) == 0)
            return 0;
    }
    return err_set(err, ERR_MISMATCH,
                   "the conversation is that of a client with an API key: give its key by "
                   "--api-key-file");
}

int turns_import(struct conversations *c, const struct tenant_names *tenants,
                 const char *text, size_t n, int *n_added, struct err *err)
{
    struct json *root = NULL;
    struct import m = {.c = c};
    int rc = json_parse(&root, text, n, "turns", err);
    const struct json *o = json_member(root, "conversation"),
                      *turns = json_member(root, "turns");
    if (rc == 0)
        rc = find_tenant(&m, tenants, root, err);
    if (rc == 0 && json_kind(o) == JSON_KIND_OBJECT)
        rc = find_begin(&m, o, err);
    for (size_t i = 0; rc == 0 && i < json_count(turns); i++)
        rc = take_turn(&m, json_at(turns, i), (int)i, err);
    *n_added = m.n_added;
    conversation_deinit(&m.v);
    turn_path_free(m.path, m.n_known);
    json_free(root);
    return rc;
}
