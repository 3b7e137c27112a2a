/* store_titles.c - see store_titles.h. */
#include "apps/store_titles.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "api/conversations.h"

struct entry {
    struct sha256 key;
    int age; /* position of the conversation in the order of last use; 0: used last */
    char *title;
};

struct store_titles {
    struct entry *e;
    size_t n, cap;
};

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int d = memcmp(x->key.b, y->key.b, sizeof x->key.b);
    return d != 0 ? d : x->age - y->age;
}

static void add(struct store_titles *t, const struct sha256 *key, int age,
                const char *title)
{
    if (t->n == t->cap) {
        t->cap = t->cap == 0 ? 64 : 2 * t->cap;
        t->e = xrealloc(t->e, t->cap * sizeof t->e[0]);
    }
    t->e[t->n++] = (struct entry){*key, age, xstrdup(title)};
}

static void add_conversation(struct store_titles *t, struct conversations *c,
                             const struct conversation *v, int age)
{
    struct turn **path = NULL;
    int n = 0;
    if (v->head == 0 || v->title == NULL || turn_path(c, v->head, &path, &n, NULL) != 0)
        return;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < path[i]->n_keys; k++)
            add(t, &path[i]->keys[k], age, v->title);
    turn_path_free(path, n);
}

static void add_all(struct store_titles *t, struct conversations *c)
{
    enum { MOST = 50 };
    char after[NAME_BYTES] = "";
    bool more = true;
    for (int age = 0; more;) {
        struct conversation v[MOST];
        int n = 0;
        more = false;
        if (conversation_list(c, "", after[0] != 0 ? after : NULL, false, MOST, v, &n,
                              &more, NULL) != 0)
            return;
        for (int i = 0; i < n; i++, age++) {
            add_conversation(t, c, &v[i], age);
            memcpy(after, v[i].name, sizeof after);
            conversation_deinit(&v[i]);
        }
    }
}

struct store_titles *store_titles_open(const char *dir, const struct seal *seal)
{
    struct store_titles *t = xcalloc(1, sizeof *t);
    char *path = xasprintf("%s/" CONVERSATIONS_FILE, dir);
    struct conversations_opts o = {.path = path, .seal = seal};
    struct conversations *c = NULL;
    struct err why = {0};
    if (access(path, F_OK) == 0 && conversations_open(&o, &c, &why) == 0)
        add_all(t, c);
    conversations_close(c);
    free(path);
    if (t->n > 0)
        qsort(t->e, t->n, sizeof t->e[0], by_key);
    return t;
}

void store_titles_close(struct store_titles *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n; i++)
        free(t->e[i].title);
    free(t->e);
    free(t);
}

const char *store_titles_find(const struct store_titles *t, const struct sha256 *key)
{
    size_t from = 0, to = t->n;
    /* Finds the first entry whose key is not below the key that is looked for. Among entries of one
     * key it has the smallest age. */
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (memcmp(t->e[mid].key.b, key->b, sizeof key->b) < 0)
            from = mid + 1;
        else
            to = mid;
    }
    bool is_it = from < t->n && memcmp(t->e[from].key.b, key->b, sizeof key->b) == 0;
    return is_it ? t->e[from].title : NULL;
}
