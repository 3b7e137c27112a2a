/* answer_syntax.h - how models write thoughts and tool calls: tables of plain data.
 *
 * An answer is thoughts, text and calls. Each family of models marks them with tags of its own; a
 * row of these tables names the tags. The parser of answers (answer.h) reads them.
 *
 * In a tag, a blank stands for any number of blanks in the answer, also none. A tag or a part of it
 * that the tokenizer has as a special token is that token, never text that spells it; all else is
 * text, whatever tokens it has.
 *
 *     section [open NAME name_end ARGUMENTS close close_more]... section_end
 *
 * Members that are NULL do not occur. */
#ifndef TEXT_ANSWER_SYNTAX_H
#define TEXT_ANSWER_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>

/* The form of one call between `open` and `close`. */
enum call_body {
    /* {"name": "f", "arguments": {...}}, with name_key and arguments_key as the members' names. If
     * name_key is NULL: {"f": {...}}. If is_list, the objects stand in a list. */
    CALL_OBJECT,
    /* NAME name_end {...} */
    CALL_JSON,
    /* NAME name_end, then [key_open KEY key_end VALUE value_end]... The values are text or JSON,
     * as the tool's schema says. */
    CALL_TAGS,
    /* NAME{key:1,list:[true],text:QUOTE...QUOTE}, where QUOTE is `quote` */
    CALL_BRACES,
    /* [f(key="text", n=1), g()], as in Python */
    CALL_PYTHON,
    /* Channels: open CHANNEL [ to=functions.NAME] name_end {...} close. Thoughts and text are
     * channels, too. */
    CALL_CHANNEL,
};

struct call_syntax {
    const char *family;
    enum call_body body;
    const char *section, *section_end;
    const char *open;
    /* an opening tag that models also write instead of `open` */
    const char *open_short;
    const char *skip_to;     /* text up to its end, in front of the name, says nothing */
    const char *name_prefix; /* does not belong to the name, and may be missing */
    const char *name_cut;    /* the name ends in front of it */
    const char *name_end;
    const char *close, *close_more; /* close_more may be missing */
    const char *name_key, *arguments_key;
    bool is_list;
    /* An answer that begins with "{" is a call, without any tag. */
    bool is_bare;
    const char *key_open, *key_end;
    const char *key_skip; /* attributes behind the key end with it */
    const char *value_end;
    bool value_on_lines; /* a line break precedes and follows each value */
    const char *quote;
};

/* Tags of thoughts, which stand at the beginning of an answer. */
struct thought_syntax {
    const char *open, *close;
};

struct answer_syntax {
    const struct call_syntax *calls; /* NULL: this model's calls are not known */
    struct thought_syntax thoughts;
    /* What the template writes behind a thought: its tag and blanks; NULL: the tag alone. */
    const char *thought_end;
};

enum { CALL_SYNTAXES = 27, THOUGHT_SYNTAXES = 14 };
/* A row whose tags contain those of another row comes before that row. */
extern const struct call_syntax call_syntaxes[CALL_SYNTAXES];
/* The first row is the default: most models write these tags. */
extern const struct thought_syntax thought_syntaxes[THOUGHT_SYNTAXES];

/* Returns whether the text contains the row's tags. */
bool call_syntax_is_in(const struct call_syntax *s, const char *text);
/* Returns the first row whose tags the text of a chat template contains; NULL: none. */
const struct call_syntax *call_syntax_in(const char *chat_template);
/* Returns the row whose tags the text of a chat template contains; else the default. */
struct thought_syntax thought_syntax_in(const char *chat_template);
/* Returns whether a text ends with a tag, and blanks. */
bool answer_ends_with(const char *text, const char *tag);
/* Returns whether a prompt, of which this is the end, has begun a thought. */
bool answer_thought_begun(const struct answer_syntax *s, const char *prompt_end);

#endif
