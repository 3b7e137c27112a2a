/* cmd_tokenize.c - hcache tokenize: converts text to token ids and back.
 *
 * It opens only the tokenizer, so it starts at once and needs no weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cmds.h"
#include "apps/option_tables.h"
#include "apps/token_ids.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "text/tokenizer.h"

#define INPUT_MAX_BYTES ((size_t)256 << 20)

struct tokenize_args {
    const char *model_dir;
    bool decode;
    bool special;
    bool parse_special;
    bool count;
};

static const struct opt positionals[] = {
    {"MODEL_DIR", OPT(struct tokenize_args, model_dir), .required = true,
     .help = "a GGUF file, or a folder with tokenizer.json (or vocab.json and merges.txt)"},
    {0},
};

static const struct opt options[] = {
    {"decode", OPT(struct tokenize_args, decode),
     .help = "read ids on stdin (separated by spaces, commas or lines) and print text"},
    {"special", OPT(struct tokenize_args, special), .def = "true",
     .help = "add the tokens that the model expects around a text (BOS); --no-special does "
             "not. With --decode: whether special tokens are left out of the text"},
    {"parse-special", OPT(struct tokenize_args, parse_special),
     .help = "read <|...|> in the text as special tokens"},
    {"count", OPT(struct tokenize_args, count), .help = "print only the number of ids"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "tokenize",
    .summary = "Reads text on stdin and prints its token ids on one line; --decode does "
               "the reverse.",
    .positionals = positionals,
    .options = options,
    .examples = "  echo -n 'Once upon a time' | hcache tokenize models/demo\n"
                "  echo 1 403 407 261 378 | hcache tokenize models/demo --decode\n",
    .values_bytes = sizeof(struct tokenize_args),
};
const struct opt_cmd *const options_of_tokenize = &cmd;

/* Reads all of stdin and appends a final zero; the caller frees *out. */
static int read_stdin(char **out, size_t *n, struct err *err)
{
    size_t room = 1 << 16, used = 0;
    char *bytes = xmalloc(room);
    for (size_t got; (got = fread(bytes + used, 1, room - used, stdin)) > 0;) {
        used += got;
        if (used == room && room < INPUT_MAX_BYTES)
            bytes = xrealloc(bytes, room *= 2);
        else if (used == room) {
            free(bytes);
            return err_set(err, ERR_LIMIT, "stdin: more than %zu bytes", INPUT_MAX_BYTES);
        }
    }
    if (ferror(stdin)) {
        free(bytes);
        return err_set(err, -EIO, "stdin: cannot be read");
    }
    /* there is room for the zero, because the loop ended with used < room */
    bytes[used] = 0;
    *out = bytes;
    *n = used;
    return 0;
}

static int encode(const struct tokenizer *t, const struct tokenize_args *a,
                  const char *text, size_t n, struct err *err)
{
    unsigned flags = (a->special ? TOKENIZER_ADD_SPECIAL : 0u) |
                     (a->parse_special ? TOKENIZER_PARSE_SPECIAL : 0u);
    int32_t *ids;
    size_t n_ids;
    int rc = tokenizer_encode(t, text, n, flags, &ids, &n_ids, err);
    if (rc != 0)
        return err_wrap(err, "stdin");
    if (a->count)
        printf("%zu", n_ids);
    for (size_t i = 0; i < n_ids && !a->count; i++)
        printf(i == 0 ? "%d" : " %d", ids[i]);
    printf("\n");
    free(ids);
    return 0;
}

static int decode(const struct tokenizer *t, const struct tokenize_args *a,
                  const char *input, size_t n, struct err *err)
{
    int32_t *ids;
    size_t n_ids, n_text;
    char *text;
    int rc = token_ids_parse(input, n, "stdin", &ids, &n_ids, err);
    if (rc != 0)
        return rc;
    rc = tokenizer_decode(t, ids, n_ids, a->special, &text, &n_text, err);
    free(ids);
    if (rc != 0)
        return err_wrap(err, "stdin");
    if (a->count)
        printf("%zu\n", n_ids);
    else
        fwrite(text, 1, n_text, stdout);
    free(text);
    return 0;
}

int cmd_tokenize(int argc, char **argv)
{
    struct tokenize_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    struct tokenizer *t = NULL;
    char *input = NULL;
    size_t n = 0;
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = tokenizer_open(&t, a.model_dir, &err);
    if (rc == 0)
        rc = read_stdin(&input, &n, &err);
    if (rc == 0)
        rc = a.decode ? decode(t, &a, input, n, &err) : encode(t, &a, input, n, &err);
    if (rc != 0)
        fprintf(stderr, "hcache tokenize: %s\n", err.msg);
    free(input);
    tokenizer_close(t);
    opt_end(parsed);
    return rc != 0;
}
