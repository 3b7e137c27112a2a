/* chat.c - a chat in the terminal over libhcache.
 *
 *     cc -std=c11 -o chat chat.c $(pkg-config --cflags --libs hcache)
 *     ./chat MODEL_DIR STORE_DIR [PLAN]
 *
 * Each line of standard input is a question.  The state of every 64 tokens is kept in
 * STORE_DIR, so the next turn, and the next process with the same beginning, computes only what
 * is new.  PLAN forces how state comes back ("kv", "hidden"); without it the library decides,
 * and computes where that is faster. */
#include <hcache.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The conversation as a JSON array of messages, without its closing bracket. */
static char *messages;
static size_t n_messages;

static void append(const char *text, size_t n)
{
    messages = realloc(messages, n_messages + n + 1);
    if (messages == NULL) {
        fprintf(stderr, "chat: out of memory\n");
        exit(1);
    }
    memcpy(messages + n_messages, text, n);
    n_messages += n;
    messages[n_messages] = 0;
}

static void append_json_string(const char *text, size_t n)
{
    append("\"", 1);
    for (size_t i = 0; i < n; i++) {
        char escaped[8];
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\' || c < 0x20)
            append(escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", c));
        else
            append(text + i, 1);
    }
    append("\"", 1);
}

static void add_message(const char *role, const char *text, size_t n)
{
    append(n_messages == 0 ? "[" : ",", 1);
    append("{\"role\":", 8);
    append_json_string(role, strlen(role));
    append(",\"content\":", 11);
    append_json_string(text, n);
    append("}", 1);
}

/* Renders all messages with the model's chat template, and converts the text to token ids. */
static int encode_messages(struct hcache *h, int32_t **ids, int *n_ids,
                           struct hcache_err *err)
{
    static const char before[] = "{\"messages\":", after[] = "]}";
    char *request = malloc(n_messages + sizeof before + sizeof after), *text = NULL;
    size_t n_text = 0;
    if (request == NULL)
        exit(1);
    int n = sprintf(request, "%s%s%s", before, messages, after);
    int rc = hcache_chat_render(h, request, (size_t)n, &text, &n_text, err);
    free(request);
    if (rc == 0)
        rc = hcache_encode(h, text, n_text, HCACHE_PARSE_SPECIAL, ids, n_ids, err);
    hcache_free(text);
    return rc;
}

static int print_text(void *arg, int32_t id, const char *text, size_t n)
{
    (void)arg;
    (void)id;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return 0;
}

static int answer(struct hcache *h, const char *plan, struct hcache_err *err)
{
    int32_t *ids = NULL;
    int n_ids = 0;
    int rc = encode_messages(h, &ids, &n_ids, err);
    if (rc != 0)
        return rc;
    struct hcache_request q = {.prompt = ids,
                               .n_prompt = n_ids,
                               .max_tokens = 256,
                               .plan = plan,
                               .on_token = print_text};
    struct hcache_result r;
    rc = hcache_generate(h, &q, &r, err);
    hcache_free(ids);
    if (rc != 0)
        return rc;
    printf("\n[%d of %d prompt tokens came from saved state]\n", r.cached_tokens,
           r.prompt_tokens);
    add_message("assistant", r.text, r.n_text);
    hcache_result_free(&r);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: chat MODEL_DIR STORE_DIR [PLAN]\n");
        return 2;
    }
    const char *stores[] = {argv[2]};
    struct hcache_opts o = {.model = argv[1], .store = stores, .n_store = 1};
    struct hcache_err err;
    struct hcache *h = NULL;
    int rc = hcache_open(&o, &h, &err);
    char line[4096];
    while (rc == 0 && fgets(line, sizeof line, stdin) != NULL) {
        add_message("user", line, strcspn(line, "\n"));
        rc = answer(h, argc == 4 ? argv[3] : NULL, &err);
    }
    if (rc != 0)
        fprintf(stderr, "chat: %s\n", err.msg);
    hcache_close(h);
    free(messages);
    return rc != 0;
}
