/* test_talk.c - kept conversations without a server: which tokens a turn keeps and under which
 * salt, the report of an answer that was cut off, and where branches begin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/json.h"
#include "api/draft.h"
#include "api/items.h"
#include "apps/talk.h"

#define LONG                                                                               \
    "Tell me about the little bird who lived in the tall green tree and sang every "       \
    "morning while the wind was blowing from the sea over the hills and the old town. "    \
    "Then tell me what the bird ate, and where it slept when the snow came in the winter."

static struct hcache *h;
static struct conversations *c;

static int open_model(void **state)
{
    const struct hcache_opts o = {
        .model = "models/demo", .threads = 1, .max_context = 640, .store_in_memory = true};
    return hcache_open(&o, &h, &(struct hcache_err){0});
}

static int close_model(void **state)
{
    hcache_close(h);
    return 0;
}

static int open_conversations(void **state)
{
    return conversations_open(&(struct conversations_opts){0}, &c, &(struct err){0});
}

static int close_conversations(void **state)
{
    conversations_close(c);
    return 0;
}

static struct talk *talk_with(const char *name, const char *salt)
{
    struct talk_opts o = {.h = h, .conversations = c, .model_name = "demo", .salt = salt};
    struct talk *t = NULL;
    struct err err = {0};
    if (talk_open(&o, name, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

static int n_generated; /* number of tokens that the last call of say generated */

/* Sends the text and lets at most n tokens be generated. Returns the number of tokens of the
 * conversation. */
static int say(struct talk *t, const char *text, int n)
{
    struct hcache_request q = {.max_tokens = n, .save = "none"};
    struct hcache_result r;
    struct err err = {0};
    if (talk_say(t, text, strlen(text), &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    n_generated = r.n_tokens;
    int all = r.prompt_tokens + r.n_tokens;
    hcache_result_free(&r);
    return all;
}

static int64_t head_of(const char *tenant, const char *title, int *n_turns)
{
    struct conversation v;
    assert_int_equal(conversation_find_title(c, tenant, title, &v, &(struct err){0}), 0);
    int64_t head = v.head;
    *n_turns = v.n_turns;
    conversation_deinit(&v);
    return head;
}

static struct turn **path_of(int64_t head, int *n)
{
    struct turn **path = NULL;
    assert_int_equal(turn_path(c, head, &path, n, &(struct err){0}), 0);
    return path;
}

/* --- tokens of a turn --------------------------------------------------------------------------
 */

TEST_WITH(a_turn_keeps_the_tokens_of_its_parent, open_conversations, close_conversations)
{
    int n, n_turns;
    struct talk *t = talk_with("birds", NULL);
    int first = say(t, LONG, 20), n_first = n_generated;
    int second = say(t, "And then?", 9), n_second = n_generated;
    assert_true(first > 64 && second > first);
    struct turn **path = path_of(head_of("", "birds", &n_turns), &n);
    assert_int_equal(n, 2);
    assert_int_equal(n_turns, 2);
    assert_int_equal(talk_n_turns(t), 2);
    assert_int_equal(path[0]->n_kept, 0);
    assert_int_equal(path[0]->n_tokens, first);
    assert_int_equal(path[1]->n_kept, first);
    assert_int_equal(path[1]->n_tokens, second);
    /* includes the key of the unfinished chunk */
    assert_true(path[0]->n_keys > first / 64);
    /* The first mark ends the prompt, before the generated tokens. */
    assert_int_equal(path[0]->mark[0].n_tokens, first - n_first);
    assert_int_equal(path[1]->mark[0].n_tokens, second - n_second);
    assert_true(path[0]->n_marks >= 2);
    assert_true(path[0]->mark[1].n_tokens > path[0]->mark[0].n_tokens);
    turn_path_free(path, n);
    talk_close(t);
}

/* Begins a draft of a turn that continues the conversation with this title. */
static struct draft draft_begun(const char *title)
{
    struct draft d = {0};
    struct fault f = {0};
    struct err err = {0};
    int n_turns;
    struct json *said = json_new_array(), *m = json_new_object();
    json_put_string(m, "role", "user");
    json_put_string(m, "content", "Go on.");
    json_push(said, m);
    assert_int_equal(draft_continue(&d, c, head_of("", title, &n_turns), &err), 0);
    assert_int_equal(items_read(said, "input", &d.input, &f), 0);
    json_free(said);
    return d;
}

static void draft_made(struct draft *d, const char *instructions)
{
    struct fault f = {0};
    struct json *text = json_new_object();
    if (instructions != NULL)
        json_put_string(text, "is", instructions);
    struct draft_opts o = {.instructions = json_member(text, "is"), .param = "input"};
    if (draft_render(d, h, &o, &f) != 0)
        fail_msg("%s", f.message);
    json_free(text);
}

/* Returns a draft of a turn that continues the conversation with this title. */
static struct draft draft_behind(const char *title, const char *instructions)
{
    struct draft d = draft_begun(title);
    draft_made(&d, instructions);
    return d;
}

/* Returns the finished turn of a draft, with one generated token. */
static struct turn *finished(const struct draft *d, const char *salt)
{
    struct turn *t = calloc(1, sizeof *t);
    struct hcache_request q = {
        .prompt = d->ids, .n_prompt = d->n_ids, .max_tokens = 1, .ignore_eos = true};
    struct hcache_result r;
    assert_int_equal(hcache_generate(h, &q, &r, &(struct hcache_err){0}), 0);
    draft_finish(d, h, &r, salt, t);
    t->output = strdup("[]"); /* set by the caller */
    hcache_result_free(&r);
    return t;
}

TEST_WITH(state_under_another_salt_is_another, open_conversations, close_conversations)
{
    struct talk *t = talk_with("birds", NULL);
    int said = say(t, LONG, 20);
    struct draft d = draft_behind("birds", NULL);
    struct turn *same = finished(&d, NULL), *other = finished(&d, "x");
    assert_int_equal(same->n_kept, said);
    /* under another salt the turn shares no chunk with its parent */
    assert_int_equal(other->n_kept, 0);
    assert_int_equal(other->n_tokens, same->n_tokens);
    assert_int_equal(other->n_keys, same->n_keys + said / 64);
    turn_free(same);
    turn_free(other);
    draft_deinit(&d);
    talk_close(t);
}

/* A conversation shorter than a chunk has no chunk whose key could differ under another salt. */
TEST_WITH(short_turns_are_kept_under_any_salt, open_conversations, close_conversations)
{
    struct talk *t = talk_with("short", NULL);
    int said = say(t, "Hi.", 4);
    assert_true(said < 64);
    struct draft d = draft_behind("short", NULL);
    struct turn *other = finished(&d, "x");
    assert_int_equal(other->n_kept, said);
    turn_free(other);
    draft_deinit(&d);
    talk_close(t);
}

TEST_WITH(another_text_is_tokenized_from_where_it_differs, open_conversations,
          close_conversations)
{
    struct talk *t = talk_with("birds", NULL);
    int said = say(t, LONG, 20);
    struct draft same = draft_behind("birds", NULL);
    assert_string_equal(same.what, "");
    assert_true(same.n_ids > said);
    struct draft other = draft_behind("birds", "Speak like a pirate.");
    assert_non_null(strstr(other.what, "retokenised at 0"));
    assert_true(other.n_ids > same.n_ids);
    struct draft empty = draft_behind("birds", ""); /* empty instructions make no message */
    assert_string_equal(empty.what, "");
    assert_int_equal(empty.n_ids, same.n_ids);
    draft_deinit(&same);
    draft_deinit(&other);
    draft_deinit(&empty);
    talk_close(t);
}

/* The longest known beginning of the text is that of the last turn's last mark. Its tokens are
 * used as they were generated, whatever the text's own tokens are. */
TEST_WITH(the_last_mark_gives_the_tokens, open_conversations, close_conversations)
{
    struct talk *t = talk_with("birds", NULL);
    (void)say(t, LONG, 20);
    (void)say(t, "And then?", 9);
    struct draft plain = draft_behind("birds", NULL), d = draft_begun("birds");
    struct turn *last = d.path[1];
    assert_true(d.n_path == 2 && last->n_marks >= 2);
    const struct turn_mark *mark = &last->mark[last->n_marks - 1];
    int at = (int)mark->n_tokens - 1;
    assert_true(mark->n_tokens > last->mark[0].n_tokens);
    last->tokens[at - last->n_kept] = 7; /* as if this token had been generated */
    draft_made(&d, NULL);
    assert_string_equal(plain.what, "");
    assert_string_equal(d.what, "");
    assert_int_equal(d.n_ids, plain.n_ids);
    assert_int_equal(d.ids[at], 7);
    assert_int_not_equal(plain.ids[at], 7);
    draft_deinit(&plain);
    draft_deinit(&d);

    /* A mark behind the turn's last token is damaged, and the one before it is used. */
    plain = draft_behind("birds", NULL);
    d = draft_begun("birds");
    last = d.path[1];
    for (int i = 1; i < last->n_marks; i++)
        last->mark[i].n_tokens = (uint32_t)last->n_tokens + 1;
    draft_made(&d, NULL);
    assert_int_equal(d.n_ids, plain.n_ids);
    draft_deinit(&plain);
    draft_deinit(&d);
    talk_close(t);
}

/* Items that were inserted after the last answer have no tokens and no model. */
TEST_WITH(inserted_items_have_no_model, open_conversations, close_conversations)
{
    struct talk *t = talk_with("birds", NULL);
    (void)say(t, LONG, 20);
    (void)say(t, "And then?", 9);
    struct draft d = draft_begun("birds");
    d.path[1]->n_tokens = d.path[1]->n_kept = d.path[1]->n_marks = 0;
    d.path[1]->fingerprint[0] = 0;
    draft_made(&d, NULL);
    assert_string_equal(d.what, "");
    draft_deinit(&d);
    talk_close(t);
}

TEST_WITH(tokens_of_another_model_mean_nothing, open_conversations, close_conversations)
{
    struct talk *t = talk_with("birds", NULL);
    (void)say(t, LONG, 20);
    struct draft d = draft_behind("birds", NULL);
    struct turn *foreign = finished(&d, NULL);
    int64_t parent = d.parent;
    bool has_branched = false;
    snprintf(foreign->name, sizeof foreign->name, "resp_foreign");
    foreign->parent = parent;
    foreign->is_visible = true;
    foreign->fingerprint[0] = foreign->fingerprint[0] == 'a' ? 'b' : 'a';
    foreign->conversation = 0;
    assert_int_equal(turn_add(c, "", foreign, NULL, &has_branched, &(struct err){0}), 0);
    struct conversation v;
    assert_int_equal(conversation_add(c, "", "conv_moved", "moved", NULL, foreign->row, &v,
                                      &(struct err){0}),
                     0);
    conversation_deinit(&v);
    struct draft moved = draft_behind("moved", NULL);
    assert_non_null(strstr(moved.what, "another model or build"));
    draft_deinit(&moved);
    draft_deinit(&d);
    turn_free(foreign);
    talk_close(t);
}

/* --- listings and answers --------------------------------------------------------------------- */

static const char *member(const struct json *o, const char *key)
{
    return json_string_of(json_member(o, key), NULL);
}

TEST_WITH(an_answer_that_was_cut_off_says_so, open_conversations, close_conversations)
{
    int n, n_turns;
    struct talk *t = talk_with("cut", NULL);
    (void)say(t, LONG, 3);
    struct turn **path = path_of(head_of("", "cut", &n_turns), &n);
    struct json *o = NULL, *output = NULL;
    struct turn *turn;
    assert_null(path[0]->answer); /* reading a path leaves out the answers */
    assert_int_equal(turn_find(c, "", path[0]->name, &turn, NULL), 0);
    assert_int_equal(
        json_parse(&o, turn->answer, strlen(turn->answer), "answer", &(struct err){0}), 0);
    turn_free(turn);
    assert_string_equal(member(o, "id"), path[0]->name);
    assert_string_equal(member(o, "status"), "incomplete");
    assert_string_equal(member(json_member(o, "incomplete_details"), "reason"),
                        "max_output_tokens");
    double used = 0, all = 0;
    assert_true(json_real_of(json_member(json_member(o, "usage"), "output_tokens"), &used));
    assert_true(json_real_of(json_member(json_member(o, "usage"), "total_tokens"), &all));
    assert_true(used == 3 && all == path[0]->n_tokens);
    assert_int_equal(json_parse(&output, path[0]->output, strlen(path[0]->output), "output",
                                &(struct err){0}),
                     0);
    assert_string_equal(member(json_at(output, 0), "status"), "incomplete");
    char *last = talk_last_answer(t);
    const struct json *part = json_at(json_member(json_at(output, 0), "content"), 0);
    assert_string_equal(last, member(part, "text"));
    free(last);
    json_free(o);
    json_free(output);
    turn_path_free(path, n);
    talk_close(t);
}

/* Of several answers the last one is shown. */
TEST_WITH(the_last_answer_is_the_last_turns, open_conversations, close_conversations)
{
    int n, n_turns;
    struct talk *t = talk_with("two", NULL);
    (void)say(t, LONG, 12);
    char *first = talk_last_answer(t);
    (void)say(t, "And then?", 5);
    char *last = talk_last_answer(t);
    struct turn **path = path_of(head_of("", "two", &n_turns), &n);
    struct json *output = NULL;
    assert_int_equal(json_parse(&output, path[1]->output, strlen(path[1]->output), "output",
                                &(struct err){0}),
                     0);
    assert_string_equal(
        last, member(json_at(json_member(json_at(output, 0), "content"), 0), "text"));
    assert_string_not_equal(first, last);
    json_free(output);
    free(first);
    free(last);
    turn_path_free(path, n);
    talk_close(t);
}

TEST_WITH(a_nameless_talk_is_kept_with_its_first_answer, open_conversations,
          close_conversations)
{
    struct conversations_stats st;
    struct talk *t = talk_with(NULL, NULL);
    assert_null(talk_title(t));
    assert_null(talk_last_answer(t));
    assert_int_equal(conversations_stats(c, &st, &(struct err){0}), 0);
    assert_int_equal(st.n_conversations, 0);
    (void)say(t, "The title of all this.", 2);
    assert_string_equal(talk_title(t), "The title of all this.");
    (void)say(t, "And on.", 2);
    assert_int_equal(conversations_stats(c, &st, &(struct err){0}), 0);
    assert_int_equal(st.n_conversations, 1);
    assert_int_equal(st.n_turns, 2);
    talk_close(t);
}

TEST_WITH(talks_belong_to_their_salt, open_conversations, close_conversations)
{
    struct talk *t = talk_with("mine", "alice");
    (void)say(t, "Hi.", 2);
    talk_close(t);
    t = talk_with("mine", "bob");
    assert_int_equal(talk_n_turns(t), 0);
    talk_close(t);
    t = talk_with("mine", "alice");
    assert_int_equal(talk_n_turns(t), 1);
    talk_close(t);
}

TEST_WITH(the_systems_message_is_said_once, open_conversations, close_conversations)
{
    struct talk_opts o = {
        .h = h, .conversations = c, .model_name = "demo", .system = "Be brief."};
    struct talk *t = NULL;
    int n, n_turns;
    assert_int_equal(talk_open(&o, "ruled", &t, &(struct err){0}), 0);
    (void)say(t, "Hi.", 2);
    (void)say(t, "And now?", 2);
    struct turn **path = path_of(head_of("", "ruled", &n_turns), &n);
    for (int i = 0; i < 2; i++) {
        struct json *items = NULL;
        assert_int_equal(json_parse(&items, path[i]->input, strlen(path[i]->input), "input",
                                    &(struct err){0}),
                         0);
        assert_int_equal(json_count(items), i == 0 ? 2 : 1);
        assert_string_equal(member(json_at(items, 0), "role"), i == 0 ? "system" : "user");
        json_free(items);
    }
    turn_path_free(path, n);
    talk_close(t);
}

/* --- room ------------------------------------------------------------------------------------- */

TEST_WITH(an_answer_has_the_room_that_is_left, open_conversations, close_conversations)
{
    struct talk *t = talk_with("full", NULL);
    struct hcache_request q = {.max_tokens = -1, .save = "none"};
    struct hcache_result r;
    struct err err = {0};
    int rc, n = 0;
    while ((rc = talk_say(t, LONG, strlen(LONG), &q, &r, &err)) == 0) {
        assert_true(r.prompt_tokens < 640 && r.prompt_tokens + r.n_tokens <= 640);
        hcache_result_free(&r);
        assert_in_range(++n, 1, 20);
    }
    assert_int_equal(rc, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "of 640 tokens"));
    assert_int_equal(talk_n_turns(t), n); /* no part of the failed turn is kept */
    talk_close(t);
}

/* A text that cannot fit is refused with its size, before it is tokenized. */
TEST_WITH(a_text_beyond_the_context_is_refused, open_conversations, close_conversations)
{
    enum { N = 60000 };
    struct talk *t = talk_with("huge", NULL);
    const struct hcache_request q = {.max_tokens = 1, .save = "none"};
    struct hcache_result r;
    struct err err = {0};
    char *text = malloc(N);
    memset(text, 'x', N);
    assert_int_equal(talk_say(t, text, N, &q, &r, &err), ERR_USAGE);
    assert_memory_equal(err.msg, "the prompt has 600", 18);
    assert_non_null(strstr(err.msg, "the maximum context length is 640 tokens"));
    assert_int_equal(talk_n_turns(t), 0);
    free(text);
    talk_close(t);
}

/* --- branches --------------------------------------------------------------------------------- */

TEST_WITH(a_branch_begins_after_the_chosen_answer, open_conversations, close_conversations)
{
    struct talk *t = talk_with("way", NULL);
    struct err err = {0};
    assert_int_equal(talk_branch(t, 0, &err), ERR_NOT_FOUND);
    for (int i = 0; i < 3; i++)
        (void)say(t, "Go on.", 2);
    assert_int_equal(talk_branch(t, 4, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "only 3 answers"));
    assert_int_equal(talk_n_turns(t), 3);
    assert_int_equal(talk_branch(t, 1, &err), 0);
    assert_int_equal(talk_n_turns(t), 2);
    assert_int_equal(talk_branch(t, 0, &err), 0);
    assert_int_equal(talk_n_turns(t), 2);
    /* the branch begins before the first turn */
    assert_int_equal(talk_branch(t, 2, &err), 0);
    assert_int_equal(talk_n_turns(t), 0);
    assert_null(talk_last_answer(t));
    assert_string_equal(talk_title(t), "way");
    struct conversations_stats st;
    assert_int_equal(conversations_stats(c, &st, &err), 0);
    assert_int_equal(st.n_conversations, 4);
    assert_int_equal(st.n_turns, 3);
    talk_close(t);
}

TEST_WITH(a_retry_asks_the_last_question_on_a_branch, open_conversations,
          close_conversations)
{
    struct talk *t = talk_with("way", NULL);
    struct hcache_request q = {.max_tokens = 2, .ignore_eos = true, .save = "none"};
    struct hcache_result r;
    struct err err = {0};
    assert_int_equal(talk_retry(t, &q, &r, &err), ERR_NOT_FOUND);
    int first = say(t, LONG, 2), second = say(t, "What did it eat?", 2);
    assert_int_equal(talk_retry(t, &q, &r, &err), 0);
    assert_int_equal(r.prompt_tokens + r.n_tokens, second);
    hcache_result_free(&r);
    assert_int_equal(talk_n_turns(t), 2);
    struct conversations_stats st;
    assert_int_equal(conversations_stats(c, &st, &err), 0);
    assert_int_equal(st.n_conversations, 2);
    assert_int_equal(st.n_turns, 3); /* the first turn and two versions of the second */
    assert_true(first < second);
    talk_close(t);
}

/* A turn that fails says why, and leaves nothing: neither a result nor a turn. */
TEST_WITH(a_turn_that_fails_is_not_kept, open_conversations, close_conversations)
{
    struct talk *t = talk_with("fails", NULL);
    const struct hcache_request good = {.max_tokens = 2,
                                        .ignore_eos = true,
                                        .save = "none"},
                                bad = {.max_tokens = 2, .temperature = -1};
    struct hcache_result r;
    struct err err = {0};
    struct conversations_stats st;
    assert_int_equal(talk_say(t, LONG, strlen(LONG), &bad, &r, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "temperature"));
    assert_null(r.token_ids);
    assert_int_equal(talk_n_turns(t), 0);
    (void)say(t, "Hi.", 2);
    err = (struct err){0};
    assert_int_equal(talk_retry(t, &bad, &r, &err), ERR_USAGE);
    assert_null(r.token_ids);
    assert_int_equal(conversations_stats(c, &st, &err), 0);
    assert_int_equal(st.n_turns, 1);
    assert_int_equal(talk_retry(t, &good, &r, &err),
                     ERR_NOT_FOUND); /* the branch is empty */
    talk_close(t);
    struct talk_opts o = {.h = h, .conversations = c, .model_name = "demo"};
    assert_int_equal(talk_open(&o, "fails", &t, &err), 0);
    assert_int_equal(talk_n_turns(t), 0); /* the newest conversation of that title */
    assert_string_equal(talk_title(t), "fails");
    talk_close(t);
}

/* A truncated conversation is never full: an answer may have half of the context. */
TEST_WITH(a_truncated_talk_is_never_full, open_conversations, close_conversations)
{
    struct talk *t = talk_with("long", NULL);
    struct hcache_result r;
    struct err err = {0};
    static const int asked[] = {600, -1, 5, 0}, got[] = {600, 320, 5, 0};
    for (int i = 0; i < 4; i++) {
        const struct hcache_request q = {.max_tokens = asked[i],
                                         .ignore_eos = true,
                                         .truncation = {.ratio = 0.5, .context = 256}};
        if (talk_say(t, "Go on.", 6, &q, &r, &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(r.n_tokens, got[i]);
        assert_true(r.truncated_tokens > 0);
        hcache_result_free(&r);
    }
    talk_close(t);
    /* without truncation an answer fills the context at most */
    static const int most[] = {1000, -1, 0};
    for (int i = 0; i < 3; i++) {
        const struct hcache_request q = {
            .max_tokens = most[i], .ignore_eos = true, .save = "none"};
        t = talk_with(NULL, NULL);
        assert_int_equal(talk_say(t, "Go on.", 6, &q, &r, &err), 0);
        assert_int_equal(r.prompt_tokens + r.n_tokens, i < 2 ? 640 : r.prompt_tokens);
        hcache_result_free(&r);
        talk_close(t);
    }
}

int main(void)
{
    return unit_run(open_model, close_model);
}
