/* answer_syntax.c - see answer_syntax.h. */
#include "text/answer_syntax.h"

#include <string.h>

/* clang-format off */
const struct call_syntax call_syntaxes[CALL_SYNTAXES] = {
    {.family = "gpt-oss", .body = CALL_CHANNEL, .open = "<|channel|>", .name_prefix = "functions.",
     .name_end = "<|message|>", .close = "<|call|>"},
    {.family = "mistral", .body = CALL_JSON, .open = "[TOOL_CALLS]", .name_cut = "[CALL_ID]",
     .name_end = "[ARGS]", .name_key = "name", .arguments_key = "arguments", .is_list = true},
    {.family = "mistral-list", .body = CALL_OBJECT, .open = "[TOOL_CALLS]",
     .name_key = "name", .arguments_key = "arguments", .is_list = true},
    {.family = "deepseek-dsml", .body = CALL_TAGS, .section = "<｜DSML｜function_calls>",
     .section_end = "</｜DSML｜function_calls>", .open = "<｜DSML｜invoke name=\"", .name_end = "\">",
     .key_open = "<｜DSML｜parameter name=\"", .key_end = "\"", .key_skip = ">",
     .value_end = "</｜DSML｜parameter>", .close = "</｜DSML｜invoke>"},
    {.family = "deepseek-dsml-4", .body = CALL_TAGS, .section = "<｜DSML｜tool_calls>",
     .section_end = "</｜DSML｜tool_calls>", .open = "<｜DSML｜invoke name=\"", .name_end = "\">",
     .key_open = "<｜DSML｜parameter name=\"", .key_end = "\"", .key_skip = ">",
     .value_end = "</｜DSML｜parameter>", .close = "</｜DSML｜invoke>"},
    {.family = "deepseek", .body = CALL_JSON, .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>", .open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_end = " ```json ", .close = "```", .close_more = "<｜tool▁call▁end｜>"},
    {.family = "deepseek-3.1", .body = CALL_JSON, .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>", .open = "<｜tool▁call▁begin｜>",
     .name_end = "<｜tool▁sep｜>", .close = "<｜tool▁call▁end｜>"},
    {.family = "kimi", .body = CALL_JSON, .section = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>", .open = "<|tool_call_begin|>",
     .name_prefix = "functions.", .name_cut = ":", .name_end = "<|tool_call_argument_begin|>",
     .close = "<|tool_call_end|>"},
    {.family = "solar", .body = CALL_JSON, .section = "<|tool_calls|>", .open = "<|tool_call:begin|>",
     .skip_to = "<|tool_call:name|>", .name_end = "<|tool_call:args|>", .close = "<|tool_call:end|>"},
    {.family = "kimi-3", .body = CALL_TAGS, .section = "<|open|>tools<|sep|>",
     .section_end = "<|close|>tools<|sep|>", .open = "<|open|>call tool=\"", .name_cut = "\"",
     .name_end = "<|sep|>", .key_open = "<|open|>argument key=\"", .key_end = "\"",
     .key_skip = "<|sep|>", .value_end = "<|close|>argument<|sep|>", .close = "<|close|>call<|sep|>"},
    {.family = "seed", .body = CALL_TAGS, .open = "<seed:tool_call> <function=", .name_end = ">",
     .key_open = "<parameter=", .key_end = ">", .value_end = "</parameter>", .close = "</function>",
     .close_more = " </seed:tool_call>"},
    {.family = "qwen-xml", .body = CALL_TAGS, .open = "<tool_call> <function=",
     .open_short = "<function=", .name_end = ">", .key_open = "<parameter=", .key_end = ">",
     .value_end = "</parameter>", .close = "</function>", .close_more = " </tool_call>",
     .value_on_lines = true},
    {.family = "minimax", .body = CALL_TAGS, .section = "<minimax:tool_call>",
     .section_end = "</minimax:tool_call>", .open = "<invoke name=\"", .name_end = "\">",
     .key_open = "<parameter name=\"", .key_end = "\">", .value_end = "</parameter>",
     .close = "</invoke>"},
    {.family = "minimax-1", .body = CALL_OBJECT, .section = "<tool_calls>",
     .section_end = "</tool_calls>", .name_key = "name", .arguments_key = "arguments"},
    {.family = "minicpm", .body = CALL_TAGS, .open = "<function name=\"", .name_end = "\">",
     .key_open = "<param name=\"", .key_end = "\">", .value_end = "</param>", .close = "</function>"},
    {.family = "glm", .body = CALL_TAGS, .open = "<tool_call>", .key_open = "<arg_key>",
     .key_end = "</arg_key> <arg_value>", .value_end = "</arg_value>", .close = "</tool_call>"},
    {.family = "hunyuan-3", .body = CALL_TAGS, .section = "<tool_calls:opensource>",
     .section_end = "</tool_calls:opensource>", .open = "<tool_call:opensource>",
     .name_end = "<tool_sep:opensource>", .key_open = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource> <arg_value:opensource>",
     .value_end = "</arg_value:opensource>", .close = "</tool_call:opensource>"},
    {.family = "hermes", .body = CALL_OBJECT, .open = "<tool_call>", .close = "</tool_call>",
     .name_key = "name", .arguments_key = "arguments"},
    {.family = "granite", .body = CALL_OBJECT, .open = "<|tool_call|>", .name_key = "name",
     .arguments_key = "arguments", .is_list = true},
    {.family = "nemotron", .body = CALL_OBJECT, .open = "<TOOLCALL>", .close = "</TOOLCALL>",
     .name_key = "name", .arguments_key = "arguments", .is_list = true},
    {.family = "command", .body = CALL_OBJECT, .open = "<|START_ACTION|>", .close = "<|END_ACTION|>",
     .name_key = "tool_name", .arguments_key = "parameters", .is_list = true},
    {.family = "apertus", .body = CALL_OBJECT, .open = "<|tools_prefix|>", .close = "<|tools_suffix|>",
     .is_list = true},
    {.family = "gemma-4", .body = CALL_BRACES, .open = "<|tool_call>call:", .quote = "<|\"|>",
     .close = "<tool_call|>"},
    {.family = "gemma-function", .body = CALL_BRACES, .open = "<start_function_call>call:",
     .quote = "<escape>", .close = "<end_function_call>"},
    {.family = "lfm2", .body = CALL_PYTHON, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>"},
    {.family = "llama-function", .body = CALL_JSON, .open = "<function=", .name_end = ">",
     .close = "</function>"},
    {.family = "llama-3", .body = CALL_OBJECT, .open = "<|python_tag|>", .name_key = "name",
     .arguments_key = "parameters", .is_bare = true},
};

const struct thought_syntax thought_syntaxes[THOUGHT_SYNTAXES] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|channel>thought", "<channel|>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"◁think▷", "◁/think▷"},
    {"<|open|>think<|sep|>", "<|close|>think<|sep|>"},
    {"<mm:think>", "</mm:think>"},
    {"<think:opensource>", "</think:opensource>"},
    {"<thought>", "</thought>"},
    {"<reasoning>", "</reasoning>"},
    {"<thinking>", "</thinking>"},
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
};
/* clang-format on */

/* Returns whether the text contains all pieces of a tag, which blanks separate. */
static bool contains(const char *text, const char *tag)
{
    char piece[64];
    while (tag != NULL && *tag != 0) {
        size_t n = strcspn(tag, " ");
        if (n > 0 && n < sizeof piece) {
            memcpy(piece, tag, n);
            piece[n] = 0;
            if (strstr(text, piece) == NULL)
                return false;
        }
        tag += n + (tag[n] == ' ');
    }
    return true;
}

bool call_syntax_is_in(const struct call_syntax *s, const char *text)
{
    return contains(text, s->section) && contains(text, s->open) &&
           contains(text, s->name_end) && contains(text, s->key_open) &&
           contains(text, s->quote);
}

const struct call_syntax *call_syntax_in(const char *chat_template)
{
    for (int i = 0; i < CALL_SYNTAXES; i++)
        if (call_syntax_is_in(&call_syntaxes[i], chat_template))
            return &call_syntaxes[i];
    return NULL;
}

struct thought_syntax thought_syntax_in(const char *chat_template)
{
    /* The default is tried last: other families' templates may mention its tags. */
    for (int i = 1; i < THOUGHT_SYNTAXES; i++)
        if (contains(chat_template, thought_syntaxes[i].open) &&
            contains(chat_template, thought_syntaxes[i].close))
            return thought_syntaxes[i];
    return thought_syntaxes[0];
}

bool answer_ends_with(const char *text, const char *tag)
{
    size_t n = strlen(text), k = strlen(tag);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\n'))
        n--;
    return n >= k && memcmp(text + n - k, tag, k) == 0;
}

bool answer_thought_begun(const struct answer_syntax *s, const char *prompt_end)
{
    return s->thoughts.open != NULL && answer_ends_with(prompt_end, s->thoughts.open);
}
