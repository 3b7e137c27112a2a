/* test_opt.c - the option table: every type, every source, every kind of error. */
#include "tests/unit.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "tests/base/said.h"

struct args {
    const char *model_dir;
    struct opt_list files;
    bool json;
    bool color;
    int n;
    int64_t seed;
    uint64_t cap;
    double temperature;
    const char *prompt;
    const char *dtype;
    int save;
    struct opt_list store;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const saves[] = {"auto", "hidden", "kv", NULL};

static const struct opt positionals[] = {
    {"MODEL_DIR", OPT(struct args, model_dir), .required = true, .help = "the model"},
    {"FILE", OPT(struct args, files), .max = 3, .help = "documents"},
    {0},
};
static const struct opt options[] = {
    {"json", OPT(struct args, json), .help = "print one JSON object"},
    {"color", OPT(struct args, color), .def = "true", .help = "color"},
    {"max-tokens", OPT(struct args, n), .letter = 'n', .def = "128", .min = 1, .max = 1000,
     .help = "stop after N tokens"},
    {"seed", OPT(struct args, seed), .min = INT64_MIN, .help = "seed"},
    {"cap", OPT(struct args, cap), .def = "1M", .min = 4096, .help = "bound"},
    {"temperature", OPT(struct args, temperature), .def = "1", .lo = 0, .hi = 5,
     .help = "t"},
    {"prompt", OPT(struct args, prompt), .letter = 'p', .help = "text"},
    {"dtype", OPT(struct args, dtype), .choices = dtypes, .help = "state type"},
    {"save", OPT(struct args, save), .choices = saves, .def = "auto", .help = "what"},
    {"store", OPT(struct args, store), .arg = "DIR[,DIR...]", .max = 4,
     .help = "directories"},
    {0},
};
static const struct opt_cmd cmd = {.name = "try",
                                   .summary = "Tries a:b things: many. At once.",
                                   .positionals = positionals,
                                   .options = options,
                                   .examples = "  hcache try m\n",
                                   .values_bytes = sizeof(struct args)};

/* A fake process: its environment and its one file. */
struct world {
    const char *env[8]; /* name, value, name, value */
    const char *file;
    size_t file_bytes; /* length of `file`; 0: strlen(file) */
};

static const char *world_env(void *ctx, const char *name)
{
    struct world *w = ctx;
    for (int i = 0; i + 1 < 8 && w->env[i] != NULL; i += 2)
        if (strcmp(w->env[i], name) == 0)
            return w->env[i + 1];
    return NULL;
}

static int world_file(void *ctx, const char *path, char **bytes, size_t *n, struct err *err)
{
    struct world *w = ctx;
    if (w->file == NULL)
        return err_set(err, -2, "--config: %s: not there", path);
    *n = w->file_bytes != 0 ? w->file_bytes : strlen(w->file);
    *bytes = xmalloc(*n);
    memcpy(*bytes, w->file, *n);
    return 0;
}

struct outcome {
    struct args a;
    struct opt_parsed *parsed;
    enum opt_help help;
    struct err err;
    int rc;
};

/* Parses a line of words separated by single spaces. */
static struct outcome parse_in(struct world *w, const char *line)
{
    char *copy = xstrdup(line);
    char *argv[32] = {"try"};
    int argc = 1;
    for (char *s = strtok(copy, " "); s != NULL; s = strtok(NULL, " "))
        argv[argc++] = s;
    struct outcome o = {.rc = 0};
    struct opt_input in = {
        .argc = argc, .argv = argv, .getenv = world_env, .read_file = world_file, .ctx = w};
    o.rc = opt_parse(&cmd, &in, &o.a, &o.parsed, &o.help, &o.err);
    free(copy); /* parsed values must not point into argv */
    return o;
}

static struct outcome parse(const char *line)
{
    struct world w = {0};
    return parse_in(&w, line);
}

static void expect_error(const char *line, const char *part)
{
    struct outcome o = parse(line);
    assert_int_not_equal(o.rc, 0);
    assert_null(o.parsed);
    if (strstr(o.err.msg, part) == NULL)
        fail_msg("\"%s\" gives \"%s\", which lacks \"%s\"", line, o.err.msg, part);
}

TEST(defaults)
{
    struct outcome o = parse("m");
    assert_int_equal(o.rc, 0);
    assert_string_equal(o.a.model_dir, "m");
    assert_false(o.a.json);
    assert_true(o.a.color);
    assert_int_equal(o.a.n, 128);
    assert_int_equal(o.a.seed, 0);
    assert_int_equal(o.a.cap, 1 << 20);
    assert_true(o.a.temperature == 1.0);
    assert_null(o.a.prompt);
    assert_null(o.a.dtype);
    assert_int_equal(o.a.save, 0);
    assert_int_equal(o.a.store.n, 0);
    assert_int_equal(o.a.files.n, 0);
    assert_int_equal(opt_source_of(o.parsed, "save"), OPT_FROM_DEFAULT);
    opt_end(o.parsed);
}

TEST(every_form)
{
    struct outcome o = parse(
        "--json --no-color -n 5 --seed=-7 --cap 64K --temperature .5 m -pHi "
        "--dtype bf16 --save kv --store a,b --store c -- f1 --f2 -");
    assert_int_equal(o.rc, 0);
    assert_true(o.a.json);
    assert_false(o.a.color);
    assert_int_equal(o.a.n, 5);
    assert_int_equal(o.a.seed, -7);
    assert_int_equal(o.a.cap, 65536);
    assert_true(o.a.temperature == 0.5);
    assert_string_equal(o.a.prompt, "Hi");
    assert_string_equal(o.a.dtype, "bf16");
    assert_int_equal(o.a.save, 2);
    assert_int_equal(o.a.store.n, 3);
    assert_string_equal(o.a.store.items[1], "b");
    assert_string_equal(o.a.store.items[2], "c");
    assert_int_equal(o.a.files.n, 3);
    assert_string_equal(o.a.files.items[0], "f1");
    assert_string_equal(o.a.files.items[1], "--f2");
    assert_string_equal(o.a.files.items[2], "-");
    assert_int_equal(opt_source_of(o.parsed, "save"), OPT_FROM_CLI);
    opt_end(o.parsed);
}

TEST(last_one_wins)
{
    struct outcome o = parse("m -n 5 --max-tokens 6 --json --json=false --max_tokens=7");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.a.n, 7);
    assert_false(o.a.json);
    opt_end(o.parsed);
}

TEST(sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},         {"4096B", 4096},        {"4K", 4096},
                {"4k", 4096},           {"4KiB", 4096},         {"5KB", 5000},
                {"4.5K", 4608},         {"1.5M", 1572864},      {"2G", 2147483648u},
                {"100MB", 100000000},   {"8T", 8796093022208u}, {"0.5GB", 500000000},
                {"1.25GiB", 1342177280}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "m --cap %s", good[i].text);
        struct outcome o = parse(line);
        assert_int_equal(o.rc, 0);
        assert_int_equal(o.a.cap, good[i].bytes);
        opt_end(o.parsed);
    }
    static const char *const bad[] = {"x",
                                      "-4096",
                                      "4096Q",
                                      "4096.5",
                                      "9999999999G",
                                      "K",
                                      "4KK",
                                      "1e6",
                                      "0x1000",
                                      "99999999999999999999",
                                      "4Kb1",
                                      "4Ki",
                                      "4iB",
                                      "4096BB",
                                      ".5K",
                                      "1.5KB.",
                                      "9223372036854775808",
                                      "8388608T",
                                      "8388607.9999999999999T",
                                      "18014398509481984K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "m --cap=%s", bad[i]);
        expect_error(line, "is not a size");
    }
}

/* A part of a unit is rounded to the nearest byte. The largest size is 2^63 - 1. */
TEST(sizes_are_exact)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"0", 0},
                {"0B", 0},
                {"9", 9},
                {"1b", 1},
                {"1.0004K", 1024},
                {"1.0005K", 1025},
                {"0.0004KB", 0},
                {"0.0005KB", 1},
                {"1.25kib", 1280},
                {"12.345KB", 12345},
                {"1M", 1048576},
                {"1mb", 1000000},
                {"1G", 1073741824},
                {"1GB", 1000000000},
                {"1t", 1099511627776},
                {"1TB", 1000000000000},
                {"8388607T", 9223370937343148032u},
                {"9223372036854775807", INT64_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 1;
        if (!opt_size_parse(rows[i].text, &bytes) || bytes != rows[i].bytes)
            fail_msg("%s gives %llu", rows[i].text, (unsigned long long)bytes);
    }
}

TEST(size_texts)
{
    char t[40];
    opt_size_text(0, t, sizeof t);
    assert_string_equal(t, "0");
    opt_size_text(4096, t, sizeof t);
    assert_string_equal(t, "4K");
    opt_size_text(1536, t, sizeof t);
    assert_string_equal(t, "1536");
    opt_size_text((uint64_t)3 << 40, t, sizeof t);
    assert_string_equal(t, "3T");
    opt_size_text((uint64_t)3 << 50, t, sizeof t); /* there is no larger unit */
    assert_string_equal(t, "3072T");
    opt_size_text(1023, t, sizeof t);
    assert_string_equal(t, "1023");
    opt_size_text(1024, t, sizeof t);
    assert_string_equal(t, "1K");
    opt_size_text(1 << 20, t, sizeof t);
    assert_string_equal(t, "1M");
    opt_size_text(1025 << 10, t, sizeof t);
    assert_string_equal(t, "1025K");
    opt_size_text(1 << 30, t, sizeof t);
    assert_string_equal(t, "1G");
}

/* --- a command with the forms that the first one lacks ---------------------------------- */

struct small {
    const char *one, *two;
    int n, m;
    int64_t seed;
    uint64_t cap;
    bool verbose;
    double share;
    struct opt_list some;
};

static const struct opt small_positionals[] = {
    {"ONE", OPT(struct small, one), .help = "one"},
    {"TWO", OPT(struct small, two), .def = "second", .help = "two"},
    {0},
};
static const struct opt small_options[] = {
    {"count", OPT(struct small, n), .required = true, .min = INT_MIN, .help = "n"},
    {"more", OPT(struct small, m), .letter = 'm', .help = "m"},
    {"seed", OPT(struct small, seed), .min = -5, .max = -1, .def = "-3", .help = "s"},
    {"cap", OPT(struct small, cap), .max = 4096, .help = "c"},
    {"verbose", OPT(struct small, verbose), .letter = 'v', .help = "v"},
    {"share", OPT(struct small, share), .lo = 0.5, .def = "0.5", .help = "sh"},
    {"some", OPT(struct small, some), .min = 2, .choices = dtypes, .help = "so"},
    {0},
};
static const struct opt_cmd small_cmd = {.name = "small",
                                         .positionals = small_positionals,
                                         .options = small_options,
                                         .values_bytes = sizeof(struct small)};

/* Parses up to seven words, which end with NULL. Returns the code; *parsed is the caller's. */
static int parse_small(const char *const *words, struct small *s,
                       struct opt_parsed **parsed, struct err *e)
{
    char *argv[8] = {"small"};
    int argc = 1;
    enum opt_help help;
    for (; words[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    const struct opt_input in = {.argc = argc, .argv = argv};
    int rc = opt_parse(&small_cmd, &in, s, parsed, &help, e);
    assert_true(rc == 0 ? *parsed != NULL : *parsed == NULL);
    return rc;
}

TEST(bounds_may_be_negative_or_missing)
{
    static const struct {
        const char *words[7];
        const char *error; /* NULL: the words are accepted */
    } rows[] = {
        {{"--count", "1"}, NULL},
        {{"--count=-2147483648"}, NULL},
        {{"--count", "2147483647"}, NULL},
        {{"--count", "2147483648"}, "--count: \"2147483648\" is out of bounds"},
        {{"--count=-2147483649"}, "--count: \"-2147483649\" is out of bounds"},
        {{"--count", "+7"}, NULL},
        {{"--count", ""}, "--count: \"\" is not a whole number"},
        {{"--count", " 7"}, "--count: \" 7\" is not a whole number"},
        {{"--count", "-"}, "--count: \"-\" is not a whole number"},
        {{"one"}, "--count is required"},
        {{"--count=1", "--more", "-1"},
         "--more: \"-1\" is out of bounds (allowed: at least 0)"},
        {{"--count=1", "-m2147483647"}, NULL},
        {{"--count=1", "-m2147483648"}, "-m: \"2147483648\" is out of bounds"},
        {{"--count=1", "--seed", "-5"}, NULL},
        {{"--count=1", "--seed", "-1"}, NULL},
        {{"--count=1", "--seed", "0"},
         "--seed: \"0\" is out of bounds (allowed: -5 to -1)"},
        {{"--count=1", "--seed", "-6"}, "--seed: \"-6\" is out of bounds"},
        {{"--count=1", "--cap", "4K"}, NULL},
        {{"--count=1", "--cap", "0"}, NULL},
        {{"--count=1", "--cap", "4097"},
         "--cap: \"4097\" is out of bounds (allowed: 0 to 4K)"},
        {{"--count=1", "-v"}, NULL},
        {{"--count=1", "-v5"}, "-v takes no value: \"-v5\""},
        {{"--count=1", "-m"}, "-m needs a value (allowed: at least 0)"},
        {{"--count=1", "--share", "1e300"}, NULL},
        {{"--count=1", "--share", "+.5"}, NULL},
        {{"--count=1", "--share", "0.4999"},
         "--share: \"0.4999\" is out of bounds (allowed: at least 0.5)"},
        {{"--count=1", "--share", "1e999"}, "--share: \"1e999\" is not a number"},
        {{"--count=1", "--share", "1.5x"}, "--share: \"1.5x\" is not a number"},
        {{"--count=1", "--some", "f32"}, "--some: 1 items (allowed: at least 2)"},
        {{"--count=1", "--some", "f32,f16"}, NULL},
        {{"--count=1", "--some", "f32", "--some", "f32"}, NULL},
        {{"--count=1", "--some", "f32,f64"},
         "--some: \"f64\" is not known (allowed: f32, bf16 or f16)"},
        {{"--count=1", "one", "two"}, NULL},
        {{"--count=1", "one", "two", "three"}, "unexpected argument \"three\""},
        {{"--count=1", "--config", "x"}, "--config: files cannot be read here"},
        {{"--no-count", "1"}, "unknown option \"--no-count\""},
        {{"--no-verbose", "--count=1"}, NULL},
        {{"--no-", "--count=1"}, "unknown option \"--no-\""},
        {{"--count=1", "-q5"}, "unknown option \"-q5\""},
        {{"--count"}, "--count needs a value"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct small s;
        struct opt_parsed *parsed;
        struct err e = {0};
        int rc = parse_small(rows[i].words, &s, &parsed, &e);
        bool is_good = rows[i].error == NULL;
        if (is_good ? rc != 0 : rc != ERR_USAGE || strstr(e.msg, rows[i].error) != e.msg)
            fail_msg("row %zu: %d \"%s\"", i, rc, e.msg);
        opt_end(parsed);
    }
}

/* What nobody sets has its default, and each way to set a value leaves the others alone. */
TEST(values_are_set_one_by_one)
{
    struct small s;
    struct opt_parsed *parsed;
    struct err e = {0};
    assert_int_equal(parse_small((const char *const[]){"--count=4", NULL}, &s, &parsed, &e),
                     0);
    assert_null(s.one);
    assert_string_equal(s.two, "second");
    assert_int_equal(s.n, 4);
    assert_true(s.m == 0 && s.seed == -3 && s.cap == 0 && !s.verbose && s.share == 0.5);
    assert_int_equal(s.some.n, 0);
    assert_int_equal(opt_source_of(parsed, "count"), OPT_FROM_CLI);
    assert_int_equal(opt_source_of(parsed, "seed"), OPT_FROM_DEFAULT);
    opt_end(parsed);
    const char *const words[] = {"a", "-v", "-m", "3", "b", "--count=-1", NULL};
    assert_int_equal(parse_small(words, &s, &parsed, &e), 0);
    assert_string_equal(s.one, "a");
    assert_string_equal(s.two, "b");
    assert_true(s.n == -1 && s.m == 3 && s.verbose && s.seed == -3);
    opt_end(parsed);
    opt_end(NULL);
}

TEST(booleans_have_words)
{
    static const char *const words[] = {"true",  "yes", "on",  "1", "TRUE",  "Yes",
                                        "false", "no",  "off", "0", "FALSE", "No"};
    for (int i = 0; i < 12; i++) {
        char line[40];
        snprintf(line, sizeof line, "m --color=%s", words[i]);
        struct outcome o = parse(line);
        assert_int_equal(o.rc, 0);
        assert_int_equal(o.a.color, i < 6);
        opt_end(o.parsed);
    }
}

/* Long names and values are cut in messages, and the message stays whole. */
TEST(long_words_are_cut_in_messages)
{
    char line[700], want[700], x[400];
    memset(x, 'x', sizeof x - 1);
    x[sizeof x - 1] = 0;
    snprintf(line, sizeof line, "m --%s=1", x);
    snprintf(want, sizeof want, "unknown option \"--%.79s\"", x);
    expect_error(line, want);
    snprintf(line, sizeof line, "m -%s", x);
    snprintf(want, sizeof want, "unknown option \"-%.39s\"", x);
    expect_error(line, want);
    snprintf(line, sizeof line, "m -n %s", x);
    snprintf(want, sizeof want, "-n: \"%.80s\" is not a whole number", x);
    expect_error(line, want);
}

/* --- the process ------------------------------------------------------------------------- */

/* Calls opt_begin with these words. *said: what it has printed on that descriptor. */
static bool begin(char **argv, int argc, int fd, struct small *s,
                  struct opt_parsed **parsed, int *code, char said[4000])
{
    FILE *f = tmpfile();
    int own = dup(fd);
    assert_non_null(f);
    fflush(NULL);
    assert_int_equal(dup2(fileno(f), fd), fd);
    bool goes_on = opt_begin(&small_cmd, argc, argv, s, parsed, code);
    fflush(NULL);
    assert_int_equal(dup2(own, fd), fd);
    close(own);
    rewind(f);
    said[fread(said, 1, 3999, f)] = 0;
    fclose(f);
    return goes_on;
}

TEST(a_command_begins_or_says_why_not)
{
    struct small s;
    struct opt_parsed *parsed = NULL;
    int code = 77;
    char said[4000];
    static const struct {
        const char *word, *begins;
    } pages[] = {{"--help", "usage: hcache small [OPTION]... [ONE] [TWO]\n"},
                 {"-h", "usage: hcache small [OPTION]... [ONE] [TWO]\n"},
                 {"--help=x", "usage: hcache small"},
                 {"--help=markdown", "### hcache small\n"},
                 {"--help=man", ".TH \"hcache-small\" 1"},
                 {"--help=words", "--count value\n--more value\n"}};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        char word[40], *argv[] = {"small", word};
        snprintf(word, sizeof word, "%s", pages[i].word);
        code = 77;
        assert_false(begin(argv, 2, STDOUT_FILENO, &s, &parsed, &code, said));
        assert_int_equal(code, 0);
        assert_null(parsed);
        if (strncmp(said, pages[i].begins, strlen(pages[i].begins)) != 0)
            fail_msg("%s prints \"%.100s\"", word, said);
    }
    char *bad[] = {"small", "--more=x"};
    assert_false(begin(bad, 2, STDERR_FILENO, &s, &parsed, &code, said));
    assert_int_equal(code, 2);
    assert_string_equal(said, "hcache small: --more: \"x\" is not a whole number (allowed: "
                              "at least 0)\nsee: hcache small --help\n");
    char *good[] = {"small", "--count=5"};
    assert_true(begin(good, 2, STDERR_FILENO, &s, &parsed, &code, said));
    assert_string_equal(said, "");
    assert_true(s.n == 5 && code == 0);
    opt_end(parsed);
    assert_int_equal(setenv("HCACHE_COUNT", "6", 1), 0);
    assert_true(begin(good, 1, STDERR_FILENO, &s, &parsed, &code, said));
    assert_int_equal(unsetenv("HCACHE_COUNT"), 0);
    assert_int_equal(s.n, 6);
    assert_int_equal(opt_source_of(parsed, "count"), OPT_FROM_ENV);
    opt_end(parsed);
    char path[] = "/tmp/hcache-opt.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, "count = 8", 9, -1), 0);
    close(fd);
    char *from_file[] = {"small", "--config", path};
    assert_true(begin(from_file, 3, STDERR_FILENO, &s, &parsed, &code, said));
    assert_int_equal(s.n, 8);
    opt_end(parsed);
    unlink(path);
    assert_false(begin(from_file, 3, STDERR_FILENO, &s, &parsed, &code, said));
    assert_int_equal(code, 2);
    assert_non_null(strstr(said, ": No such file or directory\n"));
    assert_ptr_equal(strstr(said, "hcache small: --config: /tmp/hcache-opt."), said);
}

TEST(errors_name_option_value_and_bounds)
{
    expect_error("m --max-tokens 0",
                 "--max-tokens: \"0\" is out of bounds (allowed: 1 to 1000)");
    expect_error("m -n 1001", "-n: \"1001\" is out of bounds (allowed: 1 to 1000)");
    expect_error("m -n 5x", "-n: \"5x\" is not a whole number (allowed: 1 to 1000)");
    expect_error("m -n 99999999999999999999", "is not a whole number");
    expect_error("m --seed 1.5", "--seed: \"1.5\" is not a whole number");
    expect_error("m --cap 1K", "--cap: \"1K\" is out of bounds (allowed: at least 4K)");
    expect_error("m --temperature nan", "\"nan\" is not a number (allowed: 0 to 5)");
    expect_error("m --temperature inf", "is not a number");
    expect_error("m --temperature 0x1", "is not a number");
    expect_error("m --temperature -1", "\"-1\" is out of bounds (allowed: 0 to 5)");
    expect_error("m --dtype f8",
                 "--dtype: \"f8\" is not known (allowed: f32, bf16 or f16)");
    expect_error("m --save KV",
                 "--save: \"KV\" is not known (allowed: auto, hidden or kv)");
    expect_error("m --json=maybe", "--json: \"maybe\" is neither true nor false");
    expect_error("m --store a,,b", "--store: \"a,,b\" has an empty item");
    expect_error("m --store=", "has an empty item");
    expect_error("m --store a,b,c,d,e", "--store: 5 items (allowed: at most 4)");
    expect_error("m --prompt", "--prompt needs a value");
    expect_error("m --dtype", "--dtype needs a value (allowed: f32, bf16 or f16)");
    expect_error("m -n", "-n needs a value (allowed: 1 to 1000)");
    expect_error("m --config", "--config needs a file");
    expect_error("m --temprature 1",
                 "unknown option \"--temprature\"; did you mean \"--temperature\"?");
    expect_error("m --frobnicate", "unknown option \"--frobnicate\"");
    expect_error("m -z", "unknown option \"-z\"");
    expect_error("m --no-prompt", "unknown option");
    expect_error("m --no-json=false", "unknown option");
    expect_error("", "MODEL_DIR is missing");
    expect_error("m 1 2 3 4", "too many arguments: at most 3 FILE");
}

TEST(list_keeps_all_items)
{
    struct outcome o = parse("m --store a --store b --store c --store d");
    assert_int_equal(o.a.store.n, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(o.a.store.items[i][0], 'a' + i);
    opt_end(o.parsed);
}

TEST(precedence)
{
    struct world w = {
        .env = {"HCACHE_MAX_TOKENS", "20", "HCACHE_STORE", "env", "HCACHE_PROMPT", ""},
        .file = "max-tokens = 10\nseed = 10\nstore = f1,f2\nprompt = file\n"
                "cap = 10M\njson = yes\n"};
    struct outcome o = parse_in(&w, "m --config x --cap 20M --no-json");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.a.seed, 10); /* only the file sets the seed */
    assert_int_equal(o.a.n, 20);    /* the environment overrides the file */
    assert_int_equal(o.a.cap, 20 << 20);
    assert_false(o.a.json);
    assert_int_equal(o.a.store.n, 1); /* a stronger source replaces the whole list */
    assert_string_equal(o.a.store.items[0], "env");
    assert_string_equal(o.a.prompt, "file"); /* an empty variable counts as unset */
    assert_int_equal(opt_source_of(o.parsed, "seed"), OPT_FROM_FILE);
    assert_int_equal(opt_source_of(o.parsed, "max-tokens"), OPT_FROM_ENV);
    assert_int_equal(opt_source_of(o.parsed, "cap"), OPT_FROM_CLI);
    assert_int_equal(opt_source_of(o.parsed, "temperature"), OPT_FROM_DEFAULT);
    opt_end(o.parsed);
}

TEST(config_from_environment)
{
    struct world w = {.env = {"HCACHE_CONFIG", "x"}, .file = "seed=3"};
    struct outcome o = parse_in(&w, "m");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.a.seed, 3);
    opt_end(o.parsed);
}

TEST(environment_errors_name_the_variable)
{
    struct world w = {.env = {"HCACHE_MAX_TOKENS", "many"}};
    struct outcome o = parse_in(&w, "m");
    assert_int_equal(o.rc, ERR_USAGE);
    assert_non_null(strstr(o.err.msg, "HCACHE_MAX_TOKENS: \"many\" is not a whole number"));
}

TEST(config_syntax)
{
    struct world w = {.file = "# comment\r\n\n  max_tokens=7   # trailing\r\n"
                              "prompt = \"a # b \" # quoted\nstore = a#b\n\tjson = on"};
    struct outcome o = parse_in(&w, "m --config x");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.a.n, 7);
    assert_string_equal(o.a.prompt, "a # b ");
    assert_string_equal(o.a.store.items[0], "a#b");
    assert_true(o.a.json);
    opt_end(o.parsed);
}

/* A # begins a comment at the start of a value or after a blank, and not inside quotes. */
TEST(values_of_a_config_file_are_trimmed)
{
    static const char *const rows[][2] = {
        {"prompt=a", "a"},          {"prompt = a b ", "a b"},    {"\tprompt\t=\ta\t", "a"},
        {"prompt=a#b", "a#b"},      {"prompt=a #b", "a"},        {"prompt=a\t#b", "a"},
        {"prompt=#b", ""},          {"prompt= # b", ""},         {"prompt=", ""},
        {"prompt=\"\"", ""},        {"prompt=\" a \"", " a "},   {"prompt=\"a\"#b", "a"},
        {"prompt=\"a\"  # b", "a"}, {"prompt=\"a\"\t\r", "a"},   {"prompt=a=b", "a=b"},
        {"prompt=a\r", "a"},        {"prompt=a\nprompt=b", "b"}, {"prompt=a\n\n#x\n", "a"},
        {"prompt=a\"b\"", "a\"b\""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct world w = {.file = rows[i][0]};
        struct outcome o = parse_in(&w, "m --config x");
        if (o.rc != 0 || strcmp(o.a.prompt, rows[i][1]) != 0)
            fail_msg("\"%s\" gives %d \"%s\"", rows[i][0], o.rc,
                     o.rc == 0 ? o.a.prompt : o.err.msg);
        opt_end(o.parsed);
    }
}

TEST(config_errors_name_file_and_line)
{
    static const struct {
        const char *file, *part;
    } bad[] = {{"\nmax-tokens = 0\n", "x:2: max-tokens: \"0\" is out of bounds"},
               {"max-tokens\n", "x:1: \"max-tokens\" is not a line"},
               {"tempreature = 1", "x:1: unknown option \"tempreature\"; did you mean"},
               {"prompt = \"a", "x:1: prompt: the quotes do not match"},
               {"prompt = \"a\" b", "x:1: prompt: the quotes do not match"},
               {"json =", "x:1: json: \"\" is neither true nor false"},
               {"= 5", "x:1: unknown option \"\""},
               {"#\n\r\n \t\nprompt \"a\"\n", "x:4: \"prompt \"a\"\" is not a line"},
               {"prompt=\"", "x:1: prompt: the quotes do not match"},
               {"prompt=\"a\"b", "x:1: prompt: the quotes do not match"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct world w = {.file = bad[i].file};
        struct outcome o = parse_in(&w, "m --config x");
        assert_int_equal(o.rc, ERR_USAGE);
        if (strstr(o.err.msg, bad[i].part) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", o.err.msg, bad[i].part);
    }
    struct world binary = {.file = "a\0b", .file_bytes = 3};
    assert_int_equal(parse_in(&binary, "m --config x").rc, ERR_USAGE);
    struct world none = {0};
    assert_int_equal(parse_in(&none, "m --config x").rc, -2);
}

TEST(help_wins)
{
    struct outcome o = parse("--help");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.help, OPT_HELP_TEXT);
    opt_end(o.parsed);
    o = parse("m -n 0 -h");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.help, OPT_HELP_TEXT);
    opt_end(o.parsed);
    o = parse("--help=markdown");
    assert_int_equal(o.help, OPT_HELP_MARKDOWN);
    opt_end(o.parsed);
}

static char *printed(void (*print)(const struct opt_cmd *, FILE *))
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    print(&cmd, f);
    fclose(f);
    return text;
}

static void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("lacks \"%s\":\n%s", part, text);
}

TEST(help_text)
{
    char *text = printed(opt_print_help);
    expect_part(text, "usage: hcache try [OPTION]... MODEL_DIR [FILE...]\n");
    expect_part(
        text,
        "  -n, --max-tokens N          stop after N tokens (default 128; 1 to 1000)\n");
    expect_part(text, "      --json                  print one JSON object\n");
    expect_part(text, "      --color                 color (default true)\n");
    expect_part(text, "--dtype f32|bf16|f16");
    expect_part(text, "--save auto|hidden|kv   what (default auto)\n");
    expect_part(text, "--cap BYTES             bound (default 1M; at least 4K)\n");
    expect_part(text, "examples:\n  hcache try m\n");
    for (const char *line = text; *line != 0;) {
        const char *end = strchr(line, '\n');
        assert_true(end - line <= 92);
        assert_true(end == line || end[-1] != ' ');
        line = end + 1;
    }
    free(text);
}

TEST(markdown)
{
    char *text = printed(opt_print_markdown);
    expect_part(text, "### hcache try\n");
    expect_part(text,
                "| `-n`, `--max-tokens N` | 128 | 1 to 1000 | `HCACHE_MAX_TOKENS` | stop");
    expect_part(text, "| `--dtype f32\\|bf16\\|f16` |  | f32, bf16 or f16 |");
    free(text);
}

TEST(pages)
{
    struct outcome o = parse("--help=man");
    assert_int_equal(o.help, OPT_HELP_MAN);
    opt_end(o.parsed);
    o = parse("--help=words");
    assert_int_equal(o.help, OPT_HELP_WORDS);
    opt_end(o.parsed);
    char *text = printed(opt_print_man);
    expect_part(text, ".TH \"hcache-try\" 1");
    expect_part(text, ".SH NAME\nhcache\\-try \\- Tries a:b things\n");
    expect_part(text, "\\fB\\-n\\fR, \\fB\\-\\-max\\-tokens\\fR \\fIN\\fR\n"
                      "stop after N tokens (default 128; 1 to 1000)\n");
    free(text);
    text = printed(opt_print_words);
    expect_part(text, "--max-tokens value\n");
    expect_part(text, "--json flag\n");
    expect_part(text, "--dtype choice f32 bf16 f16\n");
    free(text);
}

static bool writes; /* whether to write the golden file instead of comparing with it */

/* The four help pages of a command with options of every type equal the golden file, letter for
 * letter. `test_opt write` rewrites the golden file. */
TEST(pages_are_as_recorded)
{
    static const char path[] = "tests/opt/golden/opt_pages.txt";
    static const struct opt numbers[] = {
        {"least", OPT(struct args, seed), .min = 3, .max = INT64_MAX,
         .help = "a bound below"},
        {"most", OPT(struct args, n), .min = INT_MIN, .max = 9, .required = true,
         .help = "a bound above, of an option that has a long explanation which takes more "
                 "than one line of the page"},
        {"cap", OPT(struct args, cap), .help = "no bound"},
        {"temperature", OPT(struct args, temperature), .lo = 0.5,
         .help = ".begins with a dot"},
        {"save", OPT(struct args, save), .choices = saves, .arg = "WHAT", .help = "a \\ b"},
        {"a-name-of-many-letters-for-a-line", OPT(struct args, prompt), .letter = 'x',
         .def = "a|b", .help = "its explanation begins on the next line"},
        {"json", OPT(struct args, json), .def = "false", .help = "json"},
        {0},
    };
    static const struct opt lists[] = {
        {"SOME", OPT(struct args, files), .min = 1, .help = "at least one"}, {0}};
    static const struct opt_cmd other = {.name = "try two",
                                         .summary = "Tries x.y;z and more; at once.",
                                         .positionals = lists,
                                         .options = numbers,
                                         .values_bytes = sizeof(struct args)};
    static const struct opt_cmd *const all[] = {&cmd, &other};
    static void (*const print[])(const struct opt_cmd *, FILE *) = {
        opt_print_help, opt_print_markdown, opt_print_man, opt_print_words};
    char *got = NULL, *want = NULL;
    size_t n_got = 0, n_want = 0;
    struct err err = {0};
    FILE *f = open_memstream(&got, &n_got);
    for (int i = 0; i < 8; i++) {
        fprintf(f, "==== page %d\n", i);
        print[i % 4](all[i / 4], f);
    }
    fclose(f);
    if (writes) {
        f = fopen(path, "w");
        assert_non_null(f);
        fwrite(got, 1, n_got, f);
        fclose(f);
    }
    if (file_read(path, 1 << 20, &want, &n_want, &err) != 0)
        fail_msg("%s", err.msg);
    size_t at = 0;
    while (at < n_got && at < n_want && got[at] == want[at])
        at++;
    if (at < n_got || at < n_want)
        fail_msg("differs at byte %zu: expected \"%.60s\", got \"%.60s\"", at, want + at,
                 got + at);
    free(want);
    free(got);
}

/* For any file or command line, values are within bounds or there is an error with a message. */
TEST(random_input_is_parsed_or_refused)
{
    static const char *const pieces[] = {
        "max-tokens", "=",     " ",    "\n",    "1",      "-",
        "\"",         "#",     "json", "store", ",",      "a",
        "cap",        "64K",   "save", "kv",    ".",      "1e9",
        "\r",         "\t",    "--",   "-n",    "true",   "_",
        "dtype",      "f32",   "G",    "seed",  "\xff",   "99999999999",
        "prompt",     "--no-", "m",    "help",  "config", "temperature"};
    struct rng r = {.s = 11};
    int n_good = 0;
    for (int round = 0; round < 30000; round++) {
        char text[400] = "";
        for (int i = (int)rng_below(&r, 14); i >= 0; i--)
            strcat(text, pieces[rng_below(&r, sizeof pieces / sizeof pieces[0])]);
        struct world w = {.file = text};
        struct outcome o = round % 2 ? parse_in(&w, "m --config x") : parse(text);
        if (o.rc == 0 && o.help == OPT_HELP_NONE) {
            assert_in_range(o.a.n, 1, 1000);
            assert_true(o.a.cap >= 4096 && o.a.temperature >= 0 && o.a.temperature <= 5);
            assert_in_range(o.a.save, 0, 2);
            assert_in_range(o.a.store.n, 0, 4);
            n_good++;
        } else if (o.rc != 0) {
            assert_true(strlen(o.err.msg) > 10);
        }
        opt_end(o.parsed);
    }
    assert_true(n_good > 100);
}

TEST(nearest)
{
    static const char *const words[] = {"run", "serve", "plan", "profile", "tokenize"};
    assert_string_equal(opt_nearest("rnu", words, 5), "run");
    assert_string_equal(opt_nearest("serv", words, 5), "serve");
    assert_string_equal(opt_nearest("tokenise", words, 5), "tokenize");
    assert_string_equal(opt_nearest("tok", words, 5), "tokenize");
    assert_null(opt_nearest("xyzzyplugh", words, 5));
    assert_string_equal(opt_nearest("plna", words, 5), "plan"); /* two letters exchanged */
    /* two mistakes in three letters are too many */
    assert_null(opt_nearest("ran", (const char *const[]){"plan"}, 1));
    /* each mistake counts once: four letters may have one, six may have two */
    assert_null(opt_nearest("lpna", (const char *const[]){"plan"}, 1));
    assert_null(opt_nearest("lpan0", (const char *const[]){"plan"}, 1));
    assert_string_equal(opt_nearest("olswki", (const char *const[]){"lowski"}, 1),
                        "lowski");
    assert_null(opt_nearest("olwsik", (const char *const[]){"lowkis"}, 1));
    assert_string_equal(opt_nearest("lowskibe", (const char *const[]){"lowski"}, 1),
                        "lowski");
    assert_null(opt_nearest("abcdef", (const char *const[]){"abcxyz"}, 1));
    assert_null(opt_nearest("foo", (const char *const[]){"top-k", "host", "port"}, 3));
    assert_null(opt_nearest("", words, 0));
    /* words of 40 letters are not compared, and those of 39 are */
    for (int n = 38; n <= 41; n++) {
        char typed[50] = "x", word[50] = "y";
        const char *const one[] = {word};
        memset(typed + 1, 'a', 36);
        memset(word + 1, 'a', (size_t)n - 1);
        assert_int_equal(opt_nearest(typed, one, 1) != NULL, n < 40);
        assert_int_equal(opt_nearest(word, (const char *const[]){typed}, 1) != NULL,
                         n < 40);
    }
}

/* A mistake in the use of a command gives a message on stderr that says where to look, and ends the
 * command with status 2. */
TEST(a_fault_in_use_is_told)
{
    const struct opt_cmd named = {.name = "serve"};
    said_begin(LOG_WARN);
    int rc = opt_usage(&named, "--port %d is %s", 70000, "too large");
    assert_string_equal(
        said_end(), "hcache serve: --port 70000 is too large\nsee: hcache serve --help\n");
    assert_int_equal(rc, 2);
}

int main(int argc, char **argv)
{
    writes = argc > 1 && strcmp(argv[1], "write") == 0;
    return unit_run(NULL, NULL);
}
