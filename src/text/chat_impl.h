/* chat_impl.h - shared by the files of chats; only they include it.
 *
 *     chat.c            rendering, opening
 *     chat_messages.c   the API's messages -> messages for one template
 *     chat_calls.c      calls of tools in them, also as text, and the order of the results
 *     chat_probe.c      what a template shows */
#ifndef TEXT_CHAT_IMPL_H
#define TEXT_CHAT_IMPL_H

#include <string.h>

#include "base/textbuf.h"
#include "text/answer_find.h"
#include "text/chat.h"

struct jinja_template;

static inline bool is_string(const struct json *v)
{
    return json_kind(v) == JSON_KIND_STRING;
}

static inline bool has_role(const struct json *message, const char *role)
{
    return json_string_is(json_member(message, "role"), role);
}

/* Roles whose content may be an array of parts. */
enum chat_role { CHAT_USER, CHAT_SYSTEM, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES };

struct chat_template {
    struct jinja_template *jinja;
    struct chat_abilities can;
    struct answer_syntax syntax;
    struct answer_own own;  /* syntax.calls may point to it */
    char *thought_end;      /* syntax.thought_end points to it */
    bool parts[CHAT_ROLES]; /* the template walks parts in messages of this role */
    /* Form in which the template shows tool calls: */
    bool null_beside_calls; /* content without text is null beside calls; false: "" */
    bool text_arguments;    /* arguments are JSON text; false: an object */
    bool short_ids;         /* ids of calls have exactly nine letters and digits */
    bool single_calls; /* a message with two calls is refused, or one of them is lost */
    /* Text beside calls is shown: in the same message, or if it stands in a message before them. If
     * both are false, the template loses the text or the calls. */
    bool text_beside_calls, text_before_calls;
    bool needs_tools;        /* the template refuses a conversation without tools */
    bool needs_descriptions; /* the template refuses a tool without a description */
    bool tool_results;       /* messages of the role tool are shown */
    /* What the template knows or takes: the role developer, a second system message at the
     * beginning, a system message at a later place (shown there), two messages of the user in a
     * row, two of the assistant. */
    bool developer, two_systems, later_system, two_users, two_answers;
    /* The member of a message in which the template shows thoughts; NULL: none. */
    const char *thought_key;
    bool thought_or_text; /* a message with a thought, a text and a call is refused */
    /* The template knows the tags of thoughts and shows no earlier thoughts: it omits them on
     * purpose. */
    bool no_thoughts;
    bool thought_parts; /* the template shows thoughts in parts of the type "thinking" */
    /* The template does not show calls, so all are written into the content, as the model writes
     * them. */
    bool written_calls;
    /* The template would lose either the text or the calls of a message with both, so in such a
     * message calls are written into the content. */
    bool written_beside_text;
    /* The template shows calls itself. If written_calls is set too, it shows them in a form that
     * the parser does not know; that form is used for requests without tools. */
    bool native_calls;
};

/* A request for the template. */
struct chat_prepared {
    struct json *messages; /* the caller frees it */
    struct json *tools;    /* those that the template shows, or NULL; the caller frees it */
    bool marked;           /* the messages have tags between CHAT_TAG_BEGIN and _END */
    /* where the part behind each mark of the request begins; `byte` as in jinja_mark */
    struct chat_place {
        size_t message, byte;
    } behind[CHAT_MARKS];
};

/* chat.c: renders prepared messages. Text, foreign bits and codes are those of chat_render. */
int chat_render_prepared(const struct chat_template *t, const struct chat_request *r,
                         const struct chat_prepared *p, char **text, size_t *n,
                         uint8_t **foreign, struct err *err);

/* chat_messages.c: makes the messages for the template. Returns 0, or a code if the template would
 * leave out a part of the conversation (ERR_USAGE) or memory is short; *out is then empty. */
int chat_prepare(const struct chat_template *t, const struct chat_request *r,
                 struct chat_prepared *out, struct err *err);

/* chat_calls.c: sets tool_calls of the message `to` to calls in the template's form. Returns 0 or
 * ERR_USAGE; i is the message's number in error messages. */
int chat_prepare_calls(const struct chat_template *t, const struct json *calls, size_t i,
                       struct json *to, struct err *err);
/* The same for {"function_call": {"name", "arguments"}}, the older form of one call. */
int chat_prepare_old_call(const struct chat_template *t, const struct json *function,
                          size_t i, struct json *to, struct err *err);
/* Sets `out` to the id that this program gives to the call of a message of the older form. */
void chat_old_id(size_t message, char out[16]);
/* Returns the id as nine letters and digits; some templates take no others. */
struct json *chat_short_id(const struct json *id);
/* Returns a copy of the calls in which arguments that are the JSON text of an object are that
 * object. */
struct json *chat_object_calls(const struct json *calls);
/* Returns the messages with their results in the order of the calls. If the template takes one call
 * at a time, splits messages with several calls. (*place)[i] is the number of message i in the
 * request. The caller frees *place. */
struct json *chat_order_results(const struct chat_template *t, const struct json *messages,
                                size_t **place);

/* A tag of ours stands between these two unassigned characters (U+3FFFC, U+3FFFD), if marks are
 * wanted: it is no text of the message's author, and may be a special token. Templates can change
 * their case. */
#define CHAT_TAG_BEGIN "\xF0\xBF\xBF\xBC"
#define CHAT_TAG_END   "\xF0\xBF\xBF\xBD"

/* Returns whether calls of that syntax can be written. */
bool chat_writes(const struct call_syntax *s);
/* Appends calls in the chat API's form, whose arguments are objects. Returns false if the syntax
 * cannot express a call; then some of the text may be appended. */
bool chat_write_calls(struct textbuf *out, const struct call_syntax *s,
                      const struct json *calls, bool marked);

/* chat_probe.c: renders probes and sets all members of t that tell what the template shows, and the
 * syntax of answers. `source` and `tokens` are those of chat_open. */
void chat_probe(struct chat_template *t, const char *source, const char *tokens);
/* Returns whether the template shows messages of that role, or refuses them itself. */
bool chat_probe_role(const struct chat_template *t, const char *role);
/* Returns whether the template shows that member of a message of that role. */
bool chat_probe_member(const struct chat_template *t, const char *role, const char *key);

#endif
