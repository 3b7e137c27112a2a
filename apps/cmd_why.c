/* cmd_why.c - hcache why: says in words how the state of an answer came back, and why no more did.
 *
 * It asks a running server (GET /v1/requests), which knows its newest requests. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/cmds.h"
#include "apps/http_client.h"
#include "apps/option_tables.h"
#include "base/json.h"
#include "base/mem.h"
#include "opt/opt.h"

struct why_args {
    const char *id, *url, *key;
};

static const struct opt positionals[] = {
    {"ID", OPT(struct why_args, id),
     .help = "id of an answer, as msg_..; without one the newest requests are listed"},
    {0},
};
static const struct opt options[] = {
    {"url", OPT(struct why_args, url), .arg = "URL", .def = "http://127.0.0.1:8080",
     .help = "address of the server"},
    {"api-key", OPT(struct why_args, key), .arg = "KEY", .help = "API key for the server"},
    {0},
};
static const struct opt_cmd cmd = {
    .name = "why",
    .summary =
        "Says how the state of an answer's prompt came back, and why no more of it did. "
        "A server knows its newest requests, until it ends.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache why\n"
                "  hcache why msg_0f6d7c7a5e9b4b0c8d2f1a3e5c7b9d1f\n",
    .values_bytes = sizeof(struct why_args),
};
const struct opt_cmd *const options_of_why = &cmd;

static int64_t number(const struct json *o, const char *key)
{
    int64_t v = 0;
    (void)json_int_of(json_member(o, key), &v);
    return v;
}

static const char *source_in_words(const char *source)
{
    static const struct {
        const char *source, *words;
    } known[] = {
        {"device", "were still in memory"},
        {"dram", "were restored from memory (the DRAM tier)"},
        {"disk", "were restored from disk"},
        {"dram+disk", "were restored from memory (the DRAM tier) and disk"},
        {"computed", "were computed"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].source, source) == 0)
            return known[i].words;
    return "were restored";
}

/* Prints what became of the prompt's parts, a line each. */
static void print_parts(const struct json *told)
{
    const struct json *prefix = json_member(told, "prefix");
    for (size_t i = 0; i < json_count(prefix); i++) {
        const struct json *part = json_at(prefix, i);
        int64_t from = number(part, "from"), to = number(part, "to");
        const char *source = json_string_of(json_member(part, "source"), NULL);
        printf("  tokens %" PRId64 " to %" PRId64 " %s\n", from, to - 1,
               source_in_words(source != NULL ? source : ""));
    }
}

static void print_one(const struct json *o)
{
    const struct json *told = json_member(o, "restoration");
    const struct json *plan = json_member(told, "plan");
    const struct json *times = json_member(told, "timings");
    int64_t prompt = number(told, "prompt_tokens"), found = number(told, "cached_tokens");
    const char *miss = json_string_of(json_member(told, "miss"), NULL);
    printf("%" PRId64 " of %" PRId64 " prompt tokens were found.\n", found, prompt);
    print_parts(told);
    if (json_kind(plan) == JSON_KIND_OBJECT) {
        const char *reason = json_string_of(json_member(plan, "reason"), NULL);
        printf("Of the model's layers %" PRId64
               " were restored from hidden states, %" PRId64
               " from keys and values, and %" PRId64 " by computing them%s%s.\n",
               number(plan, "hidden"), number(plan, "kv"), number(plan, "recompute"),
               reason != NULL && reason[0] != 0 ? ": " : "", reason != NULL ? reason : "");
    }
    if (number(told, "truncated_tokens") > 0)
        printf("%" PRId64
               " tokens in the middle of the conversation are not seen any more.\n",
               number(told, "truncated_tokens"));
    double first = 0, restore = 0;
    (void)json_real_of(json_member(times, "ttft_ms"), &first);
    (void)json_real_of(json_member(times, "restore_ms"), &restore);
    printf("The first token came after %.0f ms, of which restoring took %.0f ms.\n", first,
           restore);
    if (miss != NULL)
        printf("No more was found because: %s.\n", miss);
    else
        printf("All full chunks of 64 tokens were found.\n");
}

static void print_list(const struct json *o)
{
    const struct json *data = json_member(o, "data");
    if (json_count(data) == 0)
        printf("The server has answered no request since its start.\n");
    for (size_t i = 0; i < json_count(data); i++) {
        const struct json *q = json_at(data, i), *told = json_member(q, "restoration");
        const char *id = json_string_of(json_member(q, "id"), NULL);
        const char *agent = json_string_of(json_member(q, "agent"), NULL);
        time_t at = (time_t)number(q, "created_at");
        struct tm tm;
        char when[32];
        localtime_r(&at, &tm);
        strftime(when, sizeof when, "%H:%M:%S", &tm);
        printf("%s  %-40s  %" PRId64 " of %" PRId64 " tokens found  %.40s\n", when,
               id != NULL ? id : "", number(told, "cached_tokens"),
               number(told, "prompt_tokens"), agent != NULL ? agent : "");
    }
}

int cmd_why(int argc, char **argv)
{
    struct why_args a;
    struct opt_parsed *parsed;
    struct http_client *http = NULL;
    struct json *o = NULL;
    struct err err = {0};
    char path[256] = "/v1/requests?limit=20";
    int rc;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &rc))
        return rc;
    if (a.id != NULL && (strlen(a.id) > 128 || strpbrk(a.id, "/?#% ") != NULL)) {
        rc = opt_usage(&cmd, "'%s' is no id of an answer", a.id);
        opt_end(parsed);
        return rc;
    }
    if (a.id != NULL)
        snprintf(path, sizeof path, "/v1/requests/%s", a.id);
    rc = http_client_open(a.url, a.key, &http, &err);
    if (rc == 0)
        rc = http_client_call(http, "GET", path, NULL, &o, &err);
    if (rc != 0)
        fprintf(stderr, "hcache why: %s\n", err.msg);
    else if (a.id != NULL)
        print_one(o);
    else
        print_list(o);
    json_free(o);
    http_client_close(http);
    opt_end(parsed);
    return rc != 0;
}
