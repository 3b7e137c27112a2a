/* api_conversations.c - /v1/conversations: names for kept conversations, with their items.
 *
 *     GET, POST          /v1/conversations            list (not in OpenAI's API), make
 *     GET, POST, DELETE  /v1/conversations/ID         look at, change metadata and title, erase
 *     GET, POST          /v1/conversations/ID/items   list, insert by hand
 *     GET, DELETE        /v1/conversations/ID/items/ITEM
 *     POST               /v1/conversations/ID/branch  another one with the same beginning
 *     GET                /v1/conversations/ID/branches   where others have other continuations
 *
 * The list and the branches are not in OpenAI's API.
 *
 * The items of a conversation are those of the turns up to its head. Removing one changes the
 * text of everything after it. So the remaining items become one turn without tokens, and the
 * responses that were made there are erased. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "api/draft.h"
#include "server/keep.h"

enum {
    MAX_NEW_ITEMS = 20, /* as in OpenAI's API */
    /* A search that has read so much text answers with what it found, and where to go on. */
    SEARCH_BYTES = 16 << 20,
};

/* --- shapes ----------------------------------------------------------------------------------- */

static struct json *conversation_json(const struct conversation *v)
{
    struct json *metadata = json_of_text(v->metadata);
    return json_make("{id: %s, object: 'conversation', created_at: %ld, metadata: %p, "
                     "title: %s, updated_at: %ld, turns: %d}",
                     v->name, v->created_s, metadata != NULL ? metadata : json_new_object(),
                     v->title, v->updated_s, v->n_turns);
}

/* Answers with o if rc is 0; else frees o. Returns rc. */
static int answer(struct call *c, int rc, struct json *o)
{
    if (rc == 0)
        call_json(c, 200, o);
    else
        json_free(o);
    return rc;
}

/* Reads the conversation again, and answers with it. */
static int answer_anew(struct call *c, struct conversation *v, struct fault *f)
{
    struct err err = {0};
    char *name = xstrdup(v->name);
    conversation_deinit(v);
    int rc = conversation_find(c->s->conversations, call_tenant(c), name, v, &err);
    free(name);
    return rc == 0 ? answer(c, 0, conversation_json(v)) : keep_fault(&err, f);
}

/* --- /v1/conversations ------------------------------------------------------------------------ */

/* Returns whether the conversation's title or one of its items contains `folded`. Adds the bytes
 * that it read to *bytes. */
static bool has_text(struct call *c, const struct conversation *v, const char *folded,
                     size_t *bytes)
{
    struct turn **path = NULL;
    int n = 0;
    char *title = v->title != NULL ? items_fold(v->title, strlen(v->title)) : NULL;
    bool found = title != NULL && strstr(title, folded) != NULL;
    free(title);
    if (found || v->head == 0 ||
        turn_path(c->s->conversations, v->head, &path, &n, NULL) != 0)
        return found;
    for (int i = 0; i < 2 * n && !found; i++) {
        const char *text = i % 2 == 0 ? path[i / 2]->input : path[i / 2]->output;
        struct json *items = json_of_text(text);
        *bytes += strlen(text);
        found = items_hold(items, folded);
        json_free(items);
    }
    turn_path_free(path, n);
    return found;
}

/* Adds conversations behind p->after to `data`, until it has p->limit. `folded` is a search text
 * from items_fold: only conversations that contain it are added. With NULL all are. Reads about
 * SEARCH_BYTES of text at most. `last`, "" at first, gets the name of the last conversation that
 * was looked at. *more says whether others follow it. */
static int collect_page(struct call *c, const struct items_page *p, const char *folded,
                        struct json *data, char last[NAME_BYTES], bool *more,
                        struct err *err)
{
    struct conversation page[32];
    size_t bytes = 0;
    int n, rc = 0;
    *more = true;
    while (rc == 0 && *more && (int)json_count(data) < p->limit && bytes < SEARCH_BYTES) {
        int limit = MIN(p->limit - (int)json_count(data), 32), i;
        rc = conversation_list(c->s->conversations, call_tenant(c),
                               last[0] != 0 ? last : p->after, p->oldest_first, limit, page,
                               &n, more, err);
        for (i = 0; rc == 0 && i < n && bytes < SEARCH_BYTES; i++) {
            if (folded == NULL || has_text(c, &page[i], folded, &bytes))
                json_push(data, conversation_json(&page[i]));
            snprintf(last, NAME_BYTES, "%s", page[i].name);
        }
        *more = *more || i < n;
        for (i = 0; i < n; i++)
            conversation_deinit(&page[i]);
    }
    return rc;
}

/* Lists a page of conversations; with `query` only those that contain it. A page of a long search
 * may have fewer than `limit`, or none: last_id is the last one that was looked at, and the next
 * page begins after it. */
static int list_conversations(struct call *c, struct fault *f)
{
    struct items_page p;
    struct err err = {0};
    char last[NAME_BYTES] = "";
    bool more = false;
    const char *query = call_query(c, "query");
    char *folded = NULL;
    if (keep_page(c, 20, &p, f) != 0)
        return -1;
    if (query != NULL && (folded = items_fold(query, strlen(query))) == NULL)
        return fault_set(f, 400, NULL, "query", "'query' is not UTF-8");
    struct json *data = json_new_array();
    int rc = collect_page(c, &p, folded, data, last, &more, &err);
    free(folded);
    struct json *o = json_make("{object: 'list', first_id: %s, last_id: %s, has_more: %p, "
                               "data: %p}",
                               item_id(json_at(data, 0)), last[0] != 0 ? last : NULL,
                               json_new_bool(more), data);
    return answer(c, rc == 0 ? 0 : keep_fault(&err, f), o);
}

struct change {
    const struct json *metadata, *items; /* NULL: the request does not have it */
    const char *title, *at;
};

/* Reads a request's title, metadata, items and `at`. `names` are the members that the request may
 * have. Returns 0, or -1 with *f. If the body is not JSON, call_body has answered the call. */
static int read_change(struct call *c, const char *const *names, struct change *out,
                       struct fault *f)
{
    const struct json *body = c->body.n > 0 ? call_body(c, 0) : NULL;
    struct err err = {0};
    *out = (struct change){0};
    if (c->has_bad_body || (body != NULL && request_known(body, names, f) != 0))
        return -1;
    if (json_opt_string(body, "title", &out->title, &err) != 0)
        return fault_set(f, 400, NULL, "title", "%s", err.msg);
    if (json_opt_string(body, "at", &out->at, &err) != 0)
        return fault_set(f, 400, NULL, "at", "%s", err.msg);
    if (out->title != NULL && strlen(out->title) > 256)
        return fault_set(f, 400, NULL, "title", "'title' has more than 256 bytes");
    const struct json *items = json_member(body, "items");
    out->items = json_kind(items) != JSON_KIND_NULL ? items : NULL;
    if (out->items != NULL && (json_kind(out->items) != JSON_KIND_ARRAY ||
                               json_count(out->items) > MAX_NEW_ITEMS))
        return fault_set(f, 400, NULL, "items",
                         "'items' must be a list of at most %d items", MAX_NEW_ITEMS);
    if (request_metadata(json_member(body, "metadata"), &out->metadata, f) != 0)
        return -1;
    const struct json *ttl = json_member(out->metadata, KEEP_TTL_NAME);
    int64_t ttl_s;
    if (ttl == NULL || keep_ttl(json_string_of(ttl, NULL), &ttl_s))
        return 0;
    return fault_set(f, 400, NULL, "metadata",
                     "'metadata.cache_ttl' must be seconds in digits, at most %d",
                     HCACHE_MAX_CACHE_TTL_S);
}

/* Adds items as a turn without an answer. */
static int add_items(struct call *c, const struct conversation *v, const struct json *items,
                     struct fault *f)
{
    struct err err = {0};
    bool has_branched;
    struct turn *t = xcalloc(1, sizeof *t);
    char *title = items_title(items, KEEP_TITLE_BYTES);
    conversations_name_kept(c->s->conversations, "turn", t->name);
    t->parent = v->head;
    t->conversation = v->row;
    t->input = json_text(items, 0);
    t->output = xstrdup("[]");
    int rc = turn_add(c->s->conversations, call_tenant(c), t, title, &has_branched, &err);
    turn_free(t);
    free(title);
    return rc == 0 ? 0 : keep_fault(&err, f);
}

/* Makes a conversation, with items as its first turn if the request has some. */
static int make_conversation(struct call *c, struct fault *f)
{
    static const char *const names[] = {"items", "metadata", "title", NULL};
    struct change change;
    struct conversation v = {0};
    struct json *items = NULL;
    struct err err = {0};
    char name[NAME_BYTES];
    int rc = read_change(c, names, &change, f);
    if (rc == 0 && change.items != NULL)
        rc = items_read(change.items, "items", &items, f);
    char *metadata = rc == 0 && change.metadata != NULL ? json_text(change.metadata, 0)
                                                        : NULL;
    conversations_name_kept(c->s->conversations, "conv", name);
    if (rc == 0 && conversation_add(c->s->conversations, call_tenant(c), name, change.title,
                                    metadata, 0, &v, &err) != 0)
        rc = keep_fault(&err, f);
    if (rc == 0 && json_count(items) > 0)
        rc = add_items(c, &v, items, f);
    if (rc == 0)
        rc = answer_anew(c, &v, f);
    conversation_deinit(&v);
    json_free(items);
    free(metadata);
    return rc;
}

static bool is_get(const struct call *c)
{
    return strcmp(c->route->method, "GET") == 0;
}

void api_conversations(struct call *c)
{
    struct fault f;
    int rc = c->s->conversations == NULL ? keep_none(&f)
             : is_get(c)                 ? list_conversations(c, &f)
                                         : make_conversation(c, &f);
    if (rc != 0 && !c->answered)
        call_fault(c, &f);
}

/* --- /v1/conversations/ID --------------------------------------------------------------------- */

static int change_conversation(struct call *c, struct conversation *v, struct fault *f)
{
    static const char *const names[] = {"metadata", "title", NULL};
    struct change change;
    struct err err = {0};
    int rc = read_change(c, names, &change, f);
    char *metadata = rc == 0 && change.metadata != NULL ? json_text(change.metadata, 0)
                                                        : NULL;
    if (rc == 0 && conversation_set(c->s->conversations, call_tenant(c), v->row,
                                    change.title, metadata, &err) != 0)
        rc = keep_fault(&err, f);
    free(metadata);
    return rc == 0 ? answer_anew(c, v, f) : rc;
}

static int erase_conversation(struct call *c, const struct conversation *v, struct fault *f)
{
    struct err err = {0};
    struct erased gone;
    if (conversation_delete(c->s->conversations, call_tenant(c), v->name, &gone, &err) != 0)
        return keep_fault(&err, f);
    return answer(c, 0, keep_deleted(c, v->name, "conversation.deleted", &gone));
}

/* --- items ------------------------------------------------------------------------------------ */

static void put_origin(struct json *list, const char *items, const struct turn *t)
{
    struct json *parsed = json_of_text(items);
    for (size_t i = 0; i < json_count(parsed); i++) {
        struct json *o = json_new_object();
        json_share_all(o, json_at(parsed, i));
        json_put_string(o, "response_id", t->is_visible ? t->name : NULL);
        json_push(list, o);
    }
    json_free(parsed);
}

/* Reads all items of a conversation. Each names the response to which it belongs, as input or
 * output. */
static int read_items(struct call *c, const struct conversation *v, struct json **out,
                      struct fault *f)
{
    struct err err = {0};
    struct turn **path = NULL;
    int n = 0;
    if (v->head != 0 && turn_path(c->s->conversations, v->head, &path, &n, &err) != 0)
        return keep_fault(&err, f);
    *out = json_new_array();
    for (int i = 0; i < n; i++) {
        put_origin(*out, path[i]->input, path[i]);
        put_origin(*out, path[i]->output, path[i]);
    }
    turn_path_free(path, n);
    return 0;
}

static int list_items(struct call *c, const struct conversation *v, struct fault *f)
{
    struct json *items = NULL, *o = NULL;
    struct items_page page;
    int rc = keep_page(c, 20, &page, f);
    if (rc == 0)
        rc = read_items(c, v, &items, f);
    if (rc == 0)
        rc = items_list(items, &page, &o, f);
    json_free(items);
    return answer(c, rc, o);
}

static int post_items(struct call *c, const struct conversation *v, struct fault *f)
{
    static const char *const names[] = {"items", NULL};
    struct change change;
    struct json *items = NULL, *o = NULL;
    struct items_page page = {.limit = MAX_NEW_ITEMS, .oldest_first = true};
    int rc = read_change(c, names, &change, f);
    if (rc == 0 && change.items == NULL)
        rc = fault_set(f, 400, NULL, "items", "'items' is missing");
    if (rc == 0)
        rc = items_read(change.items, "items", &items, f);
    if (rc == 0 && json_count(items) > 0)
        rc = add_items(c, v, items, f);
    if (rc == 0)
        rc = items_list(items, &page, &o, f);
    json_free(items);
    return answer(c, rc, o);
}

/* Finds the index of an item. Returns 0, or -1 with *f. */
static int find_item(const struct json *items, const char *id, size_t *at, struct fault *f)
{
    if (items_find(items, id, at))
        return 0;
    return fault_set(f, 404, "not_found", NULL, "there is no item '%.80s'", id);
}

static int get_item(struct call *c, const struct conversation *v, const char *id,
                    struct fault *f)
{
    struct json *items = NULL;
    size_t at;
    int rc = read_items(c, v, &items, f);
    if (rc == 0)
        rc = find_item(items, id, &at, f);
    struct json *o = rc == 0 ? json_share(json_at(items, at)) : NULL;
    json_free(items);
    return answer(c, rc, o);
}

/* Returns the new title of a conversation that loses an item. A title that was made from the item
 * is replaced by the first words of the items that are left ("" if they have none). Returns NULL if
 * the title stays. */
static char *title_without(const struct conversation *v, const struct json *item,
                           const struct json *left)
{
    struct json *gone = json_new_array();
    json_push(gone, json_share(item));
    char *made = items_title(gone, KEEP_TITLE_BYTES), *title = NULL;
    if (made != NULL && v->title != NULL && strcmp(made, v->title) == 0) {
        title = items_title(left, KEEP_TITLE_BYTES);
        title = title != NULL ? title : xstrdup("");
    }
    free(made);
    json_free(gone);
    return title;
}

/* Replaces the conversation's turns by one turn with all items except number `without`. */
static int remove_item(struct call *c, const struct conversation *v, size_t without,
                       struct fault *f)
{
    struct err err = {0};
    struct turn **path = NULL;
    struct erased gone;
    int n = 0;
    if (turn_path(c->s->conversations, v->head, &path, &n, &err) != 0)
        return keep_fault(&err, f);
    struct json *all = draft_items(path, n), *left = json_new_array();
    for (size_t i = 0; i < json_count(all); i++) {
        if (i != without)
            json_push(left, json_share(json_at(all, i)));
    }
    struct turn *t = xcalloc(1, sizeof *t);
    conversations_name_kept(c->s->conversations, "turn", t->name);
    t->conversation = v->row;
    (void)draft_moment(path, n, t->moment);
    turn_path_free(path, n); /* frees the large texts, so that they exist only once */
    t->input = json_text(left, 0);
    char *title = title_without(v, json_at(all, without), left);
    json_free(all);
    json_free(left);
    t->output = xstrdup("[]");
    int rc = conversation_rewrite(c->s->conversations, call_tenant(c), v->head, t, title,
                                  &gone, &err);
    free(title);
    if (rc == 0)
        json_free(keep_deleted(c, v->name, "", &gone));
    turn_free(t);
    return rc == 0 ? 0 : keep_fault(&err, f);
}

static int delete_item(struct call *c, struct conversation *v, const char *id,
                       struct fault *f)
{
    struct json *items = NULL;
    size_t at;
    int rc = read_items(c, v, &items, f);
    if (rc == 0)
        rc = find_item(items, id, &at, f);
    json_free(items);
    if (rc == 0)
        rc = remove_item(c, v, at, f);
    return rc == 0 ? answer_anew(c, v, f) : rc;
}

/* --- branches --------------------------------------------------------------------------------- */

static bool has_item(const char *items, const char *id)
{
    struct json *parsed = json_of_text(items);
    bool found = items_find(parsed, id, &(size_t){0});
    json_free(parsed);
    return found;
}

/* Finds the turn that has the name `at` or contains the item `at`; at NULL: the last turn. */
static int find_turn(struct call *c, const struct conversation *v, const char *at,
                     int64_t *row, struct fault *f)
{
    struct err err = {0};
    struct turn **path = NULL;
    int n = 0, i;
    *row = v->head;
    if (at == NULL || v->head == 0)
        return at == NULL ? 0
                          : fault_set(f, 404, "not_found", "at",
                                      "the conversation has no '%.80s'", at);
    if (turn_path(c->s->conversations, v->head, &path, &n, &err) != 0)
        return keep_fault(&err, f);
    for (i = n - 1; i >= 0; i--) {
        const struct turn *t = path[i];
        if ((t->is_visible && strcmp(t->name, at) == 0) || has_item(t->input, at) ||
            has_item(t->output, at))
            break;
    }
    *row = i >= 0 ? path[i]->row : 0;
    turn_path_free(path, n);
    return i >= 0 ? 0
                  : fault_set(f, 404, "not_found", "at", "the conversation has no '%.80s'",
                              at);
}

/* Makes a conversation that begins like v, up to the turn `at`. */
static int branch_conversation(struct call *c, const struct conversation *v,
                               struct fault *f)
{
    static const char *const names[] = {"at", "title", "metadata", NULL};
    struct change change;
    struct conversation made = {0};
    struct err err = {0};
    char name[NAME_BYTES];
    int64_t row = 0;
    int rc = read_change(c, names, &change, f);
    if (rc == 0)
        rc = find_turn(c, v, change.at, &row, f);
    char *metadata = rc == 0 && change.metadata != NULL ? json_text(change.metadata, 0)
                                                        : NULL;
    conversations_name_kept(c->s->conversations, "conv", name);
    /* An empty title: the branch gets one from its first own turn. */
    const char *title = change.title == NULL   ? v->title
                        : change.title[0] != 0 ? change.title
                                               : NULL;
    if (rc == 0 && conversation_add(c->s->conversations, call_tenant(c), name, title,
                                    metadata, row, &made, &err) != 0)
        rc = keep_fault(&err, f);
    struct json *o = rc == 0 ? conversation_json(&made) : NULL;
    conversation_deinit(&made);
    free(metadata);
    return answer(c, rc, o);
}

static int list_forks(struct call *c, const struct conversation *v, struct fault *f)
{
    struct err err = {0};
    struct fork *fork = xcalloc(FORKS_MAX, sizeof *fork);
    int n = 0, i = 0;
    struct json *data = json_new_array();
    int rc = v->head != 0 ? conversation_forks(c->s->conversations, call_tenant(c), v->head,
                                               fork, &n, &err)
                          : 0;
    while (i < n) {              /* the continuations of one turn */
        const char *next = NULL; /* the continuation on the path of v */
        struct json *all = json_new_array();
        int64_t parent = fork[i].parent;
        for (; i < n && fork[i].parent == parent; i++) {
            const struct fork *k = &fork[i];
            json_push(all, json_make("{response_id: %s, conversation: %s}", k->turn,
                                     k->is_on_path ? v->name : k->conversation));
            if (k->is_on_path)
                next = k->turn;
        }
        json_push(data, json_make("{response_id: %s, branches: %p}", next, all));
    }
    free(fork);
    return answer(c, rc == 0 ? 0 : keep_fault(&err, f),
                  json_make("{object: 'list', data: %p}", data));
}

/* --- the routes ------------------------------------------------------------------------------- */

/* rest: the path behind the id. The table of routes has no other paths and methods. */
static int answer_path(struct call *c, struct conversation *v, const char *rest,
                       struct fault *f)
{
    if (rest[0] == 0 && strcmp(c->route->method, "DELETE") == 0)
        return erase_conversation(c, v, f);
    if (rest[0] == 0)
        return is_get(c) ? answer(c, 0, conversation_json(v))
                         : change_conversation(c, v, f);
    if (strcmp(rest, "items") == 0)
        return is_get(c) ? list_items(c, v, f) : post_items(c, v, f);
    if (strncmp(rest, "items/", 6) == 0)
        return is_get(c) ? get_item(c, v, rest + 6, f) : delete_item(c, v, rest + 6, f);
    return strcmp(rest, "branches") == 0 ? list_forks(c, v, f)
                                         : branch_conversation(c, v, f);
}

void api_conversation(struct call *c)
{
    struct conversation v = {0};
    struct err err = {0};
    struct fault f;
    const char *rest = keep_split(c->tail);
    int rc = 0;
    if (c->s->conversations == NULL)
        rc = keep_none(&f);
    else if (conversation_find(c->s->conversations, call_tenant(c), c->tail, &v, &err) != 0)
        rc = keep_fault(&err, &f);
    else
        rc = answer_path(c, &v, rest, &f);
    if (rc != 0 && !c->answered)
        call_fault(c, &f);
    conversation_deinit(&v);
}
