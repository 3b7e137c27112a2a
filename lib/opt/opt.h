/* opt.h - the one option table: command line, environment, config file, --help and docs.
 *
 * A command declares a plain struct for its values and a table that names, types, bounds
 * and explains each field; everything else is derived from the table:
 *
 *     struct run_args {
 *         const char *model_dir;
 *         int max_tokens;
 *         struct opt_list store;
 *         bool json;
 *     };
 *     static const struct opt run_positionals[] = {
 *         {"MODEL_DIR", OPT(struct run_args, model_dir), .required = true, .help = "..."},
 *         {0},
 *     };
 *     static const struct opt run_options[] = {
 *         {"max-tokens", OPT(struct run_args, max_tokens), .letter = 'n', .arg = "N",
 *          .def = "128", .min = 1, .max = 1000000, .help = "stop after N tokens"},
 *         {"store", OPT(struct run_args, store), .arg = "DIR[,DIR...]", .help = "..."},
 *         {"json", OPT(struct run_args, json), .help = "print one JSON object"},
 *         {0},
 *     };
 *     static const struct opt_cmd run_cmd = {
 *         .name = "run", .summary = "Generates text.", .positionals = run_positionals,
 *         .options = run_options, .values_bytes = sizeof(struct run_args)};
 *
 *     struct run_args a;
 *     struct opt_parsed *parsed;
 *     int code;
 *     if (!opt_begin(&run_cmd, argc, argv, &a, &parsed, &code))
 *         return code;             (--help was printed, or the error was)
 *     ...
 *     opt_end(parsed);             (frees every string and list in a)
 *
 * The field's C type decides what is accepted (see OPT below):
 *     bool                --json, --no-json, --json=false; elsewhere true or false
 *     int, int64_t        a whole number within min..max
 *     uint64_t            a size within min..max: 4096, 64K, 100MB, 1.5G
 *                         (K, M, G, T are 1024^n; KB, MB, GB, TB are 1000^n)
 *     double              a number within lo..hi
 *     const char *        text; with `choices`, one of them; NULL where nothing was given
 *     int with `choices`  one of them; the value is its index
 *     struct opt_list     texts separated by commas; an option given twice adds to its list
 *
 * Precedence: command line > environment (HCACHE_MAX_TOKENS for "max-tokens") > config file
 * (--config FILE or HCACHE_CONFIG; lines `max-tokens = 5`, # comments) > default.  An
 * environment variable that is empty counts as unset.  An unknown key in the file is an
 * error, so that a typing mistake does not pass silently.
 *
 * opt_parse is a pure function of its sources; opt_begin connects it to the process. There
 * are no globals. */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum opt_type {
    OPT_BOOL,
    OPT_INT,
    OPT_INT64,
    OPT_SIZE,
    OPT_DOUBLE,
    OPT_STRING,
    OPT_LIST,
};

struct opt_list {
    const char **items;
    int n;
};

struct opt {
    const char *name; /* "max-tokens"; for a positional "MODEL_DIR" */
    enum opt_type type;
    size_t offset; /* the field's offset in the values struct; OPT() sets type and offset */
    char letter;   /* 'n' for -n; 0: the option has no letter */
    bool required;
    /* how --help names the value: "N", "FILE"; NULL: a name that depends on the field's type */
    const char *arg;
    /* The default, as a user would write it. NULL: the value is zero, NULL, or an empty list. */
    const char *def;
    /* allowed texts, ended by NULL; NULL: all texts are allowed */
    const char *const *choices;
    /* Bounds of integers and sizes, and of the number of items in a list. max 0: no upper bound. To
     * allow negative values, set min below 0. */
    int64_t min, max;
    /* Bounds of doubles; hi 0: no upper bound. */
    double lo, hi;
    /* A phrase without a full stop. --help appends default and bounds to it. */
    const char *help;
};

/* Initialises type and offset from field f of struct s. */
/* clang-format off */
#define OPT(s, f)                                                                          \
    .type = _Generic(((s *)0)->f, _Bool: OPT_BOOL, int: OPT_INT, int64_t: OPT_INT64,       \
                     uint64_t: OPT_SIZE, double: OPT_DOUBLE, const char *: OPT_STRING,     \
                     struct opt_list: OPT_LIST),                                           \
    .offset = offsetof(s, f)
/* clang-format on */

struct opt_cmd {
    const char *name;    /* "run": error messages begin with "hcache run:" */
    const char *summary; /* one or two sentences for --help */
    /* The positionals in order, ended by {0}. Optional ones follow required ones, and only the last
     * may be a list. NULL: there are none. */
    const struct opt *positionals;
    const struct opt *options; /* the table ends with {0}; NULL: no options */
    const char *examples;      /* whole lines for --help; NULL: none */
    size_t values_bytes;       /* size of the values struct */
};

enum opt_source {
    OPT_FROM_DEFAULT,
    OPT_FROM_FILE,
    OPT_FROM_ENV,
    OPT_FROM_CLI,
};

struct opt_parsed; /* owns the strings and lists that the values point to */

/* --- for commands ------------------------------------------------------------------- */

/* Parses the process's arguments (argv[0] is the command's name), environment and config file into
 * `values`.  Returns true if the command should run; the caller then owns *parsed.  Returns false
 * after --help (printed on stdout; --help=markdown and =man are for docs, =words for completion) or
 * after an error (printed on stderr). *exit_code is 2 after an error, else 0. */
bool opt_begin(const struct opt_cmd *cmd, int argc, char **argv, void *values,
               struct opt_parsed **parsed, int *exit_code);
void opt_end(struct opt_parsed *p); /* NULL is allowed */

/* Returns the source of the option's value. So a caller can tell "--save both" from a default of
 * "both". */
enum opt_source opt_source_of(const struct opt_parsed *p, const char *name);

/* Returns the product of the values of some options of whole numbers, or of those that the command
 * has, from the process's arguments, environment and config file; 1 if any option is wrong, or if
 * the user asks for help.  Prints nothing.  `names` ends with NULL. */
int opt_product(const struct opt_cmd *cmd, int argc, char **argv, const char *const *names);

/* Prints "hcache CMD: MESSAGE" and a hint at --help on stderr. Returns 2, for `return
 * opt_usage(&cmd, "--a and --b exclude each other");` */
int opt_usage(const struct opt_cmd *cmd, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* --- the pure part ------------------------------------------------------------------ */

struct opt_input {
    int argc; /* number of arguments; argv[0] is skipped */
    char *const *argv;
    /* returns the value of an environment variable; NULL: no environment is used */
    const char *(*getenv)(void *ctx, const char *name);
    /* Reads the config file into memory from malloc. NULL: config files are not supported. */
    int (*read_file)(void *ctx, const char *path, char **bytes, size_t *n, struct err *err);
    void *ctx;
};

enum opt_help {
    OPT_HELP_NONE,
    OPT_HELP_TEXT,
    OPT_HELP_MARKDOWN,
    OPT_HELP_MAN,
    OPT_HELP_WORDS,
};

/* Parses all sources into `values`. Returns 0, or ERR_USAGE (or read_file's code) with a message
 * that names the option, the value and the allowed values. If *help is not OPT_HELP_NONE, the user
 * asked for help, and the values are not complete. On an error *parsed is NULL. */
int opt_parse(const struct opt_cmd *cmd, const struct opt_input *in, void *values,
              struct opt_parsed **parsed, enum opt_help *help, struct err *err);

void opt_print_help(const struct opt_cmd *cmd, FILE *out);
void opt_print_markdown(const struct opt_cmd *cmd, FILE *out);
/* Prints a man page of section 1, in roff. */
void opt_print_man(const struct opt_cmd *cmd, FILE *out);
/* Prints words for shell completion, one line per option: "--NAME KIND [CHOICE]...", where KIND is
 * flag, value, choice, file or dir. */
void opt_print_words(const struct opt_cmd *cmd, FILE *out);

/* Writes the environment variable of an option: "HCACHE_MAX_TOKENS". */
void opt_env_name(const char *name, char *out, size_t out_bytes);
/* Writes which values the option accepts ("1 to 100", "f32, bf16 or f16"); "" if it accepts every
 * value. */
void opt_allowed(const struct opt *o, char *out, size_t out_bytes);
/* Parses a size such as 4096, 64K, 100MB or 1.5G. Returns false if the text is not a size. */
bool opt_size_parse(const char *text, uint64_t *out);
/* Writes a size as a user would, "64K", without rounding. */
void opt_size_text(uint64_t bytes, char *out, size_t out_bytes);

/* Returns the word among words[0..n) that differs from `typed` by a typing mistake, or that begins
 * with it; NULL: there is no such word. */
const char *opt_nearest(const char *typed, const char *const *words, int n);

#endif
