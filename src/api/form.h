/* form.h - the form that a request wants for its answer, in all spellings of the APIs.
 *
 *     response_format, text.format, output_config.format, output_format, format   JSON, or a schema
 *     json_schema, grammar                                                        llama-server's
 *     structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar  vLLM's
 *     tool_choice: required, any, allowed_tools, or the name of a tool            calls
 *     tools with "strict": true                                                   calls
 *
 * A wanted call is the answer, whatever form its text should have. Where a call may be made, the
 * answer is one or has the form of the text.
 *
 * docs/STRUCTURED.md says what is enforced. */
#ifndef API_FORM_H
#define API_FORM_H

#include "base/json.h"
#include "hcache.h"
#include "api/fault.h"

struct gen_params;

struct form_want {
    const char *field; /* name for messages; NULL: the answer may have any form */
    enum hcache_form_kind kind;
    /* A schema, a list of texts, or a string with the text of a grammar or a regular expression;
     * NULL stands for any JSON object. Borrowed. */
    const struct json *value;
    bool loose; /* the request says "strict": false */
};

/* Read a field into *out, which another field may have set. Return 0, or -1 with *f. */
int form_read_format(const char *field, const struct json *v, struct form_want *out,
                     struct fault *f);
int form_read_value(const char *field, enum hcache_form_kind kind, const struct json *v,
                    struct form_want *out, struct fault *f);
int form_read_structured(const char *field, const struct json *v, struct form_want *out,
                         struct fault *f);

/* What tool_choice says, unless it is auto or none. */
struct call_want {
    const char *field;          /* NULL: a call may be made, and need not */
    const char *only;           /* the tool to call; NULL: any */
    const struct json *allowed; /* the only tools that may be called; NULL: all */
};
/* choice: as in OpenAI's or Anthropic's API, and neither auto nor none. */
int form_read_choice(const char *field, const struct json *choice, struct call_want *out,
                     struct fault *f);
/* Returns the tools that the answer may call, NULL: none; the caller's. */
struct json *form_callable(const struct gen_params *p);

/* Compiles the form that the request wants; *out is the caller's, or NULL if the request wants
 * none. `callable` is from form_callable. *unenforced gets the keywords that the form does not
 * enforce, or NULL; free it with hcache_free. Returns 0, or -1 with *f. */
int form_compile(struct hcache *h, struct gen_params *p, const struct json *callable,
                 struct hcache_form **out, char **unenforced, struct fault *f);

#endif
