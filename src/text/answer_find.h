/* answer_find.h - finds out how a model writes thoughts and calls, from its chat template.
 *
 * The template shows it: an answer with a call is rendered, and the row of the tables that reads
 * the call back is the model's syntax. If none does, a row is made from the rendered call. Where a
 * template renders no calls, its text must name the tags. */
#ifndef TEXT_ANSWER_FIND_H
#define TEXT_ANSWER_FIND_H

#include "text/answer_syntax.h"

#define ANSWER_SAMPLE      "hcacheprobe"
#define ANSWER_SAMPLE_KEY  "keyprobe"
#define ANSWER_SAMPLE_TOOL "hcachetool" /* a second one has a 2 behind it */

/* A prompt that ends with an answer. */
struct answer_sample {
    const char *text; /* NULL: the template renders no such answer */
    size_t n;
    /* Offset of the first byte that differs from the prompt without the answer. The answer begins
     * there, or some bytes earlier if the prompt ends with the answer's first bytes. */
    size_t begin;
};

struct answer_samples {
    /* an answer that calls the tool with {ANSWER_SAMPLE_KEY: ANSWER_SAMPLE} */
    struct answer_sample one;
    struct answer_sample two;     /* an answer that calls both tools with these arguments */
    struct answer_sample thought; /* an answer with the thought ANSWER_SAMPLE */
    struct answer_sample plain;   /* an answer whose text is ANSWER_SAMPLE */
};

/* A row that was made from the samples of a template whose family is in no table. */
struct answer_own {
    struct call_syntax row;
    char open[64], close[64], name_key[32], arguments_key[32];
};

/* Returns the syntax of the template's model. It may point to a row that is made in *own, which
 * must live as long as the result. */
struct answer_syntax answer_find(const char *chat_template, const struct answer_samples *s,
                                 struct answer_own *own);

#endif
