/* opt.c - from argv, environment and config bytes to values (see opt.h); help is in
 * opt_help.c.
 *
 * Invariants:
 *   1. sources are applied from the weakest to the strongest; each overwrites the one before;
 *   2. every string that a value points to is a copy owned by opt_parsed;
 *   3. a default passes through the same parser and bounds as a user's value; a default
 *      that does not parse is a bug and is asserted. */
#include "base/minmax.h"
#include "opt/opt.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/file.h"
#include "base/mem.h"

#define MAX_OPTIONS      96
#define CONFIG_MAX_BYTES (1 << 20)

struct opt_parsed {
    const struct opt_cmd *cmd;
    enum opt_source source[MAX_OPTIONS];
    void **owned;
    int n_owned;
};

/* --- owned memory ------------------------------------------------------------------- */

static void *own(struct opt_parsed *p, void *mem)
{
    p->owned = xrealloc(p->owned, (size_t)(p->n_owned + 1) * sizeof *p->owned);
    p->owned[p->n_owned++] = mem;
    return mem;
}

void opt_end(struct opt_parsed *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n_owned; i++)
        free(p->owned[i]);
    free(p->owned);
    free(p);
}

/* --- single values ------------------------------------------------------------------ */

static int bad_value(const struct opt *o, const char *place, const char *text,
                     const char *what, struct err *err)
{
    char allowed[300];
    opt_allowed(o, allowed, sizeof allowed);
    if (allowed[0] == 0)
        return err_set(err, ERR_USAGE, "%s: \"%.80s\" %s", place, text, what);
    return err_set(err, ERR_USAGE, "%s: \"%.80s\" %s (allowed: %s)", place, text, what,
                   allowed);
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0)
            return *out = true, true;
        if (strcasecmp(text, no[i]) == 0)
            return *out = false, true;
    }
    return false;
}

/* Rejects input that strtoll and strtod accept but options do not: leading white space, "inf" and
 * hexadecimal. */
static bool starts_number(const char *s)
{
    if (*s == '-' || *s == '+')
        s++;
    if (*s == '.')
        s++;
    return *s >= '0' && *s <= '9';
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return starts_number(text) && *end == 0 && errno == 0;
}

static bool parse_double(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return starts_number(text) && strpbrk(text, "xX") == NULL && *end == 0 &&
           isfinite(*out);
}

bool opt_size_parse(const char *text, uint64_t *out)
{
    static const char letters[] = "KMGT";
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    uint64_t whole = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    double fraction = 0;
    if (*end == '.') {
        double scale = 0.1;
        for (end++; *end >= '0' && *end <= '9'; end++, scale /= 10)
            fraction += (*end - '0') * scale;
    }
    uint64_t unit = 1;
    const char *l = *end != 0 ? strchr(letters, *end & ~32) : NULL;
    if (l != NULL && *l != 0) {
        end++;
        bool decimal = strcasecmp(end, "b") == 0;
        for (int i = 0; i <= l - letters; i++)
            unit *= decimal ? 1000 : 1024;
        if (decimal || strcasecmp(end, "ib") == 0)
            end += strlen(end);
    } else if (*end == 'b' || *end == 'B') {
        end++;
    }
    if (*end != 0 || (unit == 1 && fraction > 0))
        return false;
    uint64_t extra = (uint64_t)(fraction * (double)unit + 0.5);
    return mul_fits(whole, unit, out) && add_fits(*out, extra, out) && *out <= INT64_MAX;
}

static int find_choice(const struct opt *o, const char *text)
{
    for (int i = 0; o->choices[i] != NULL; i++)
        if (strcmp(o->choices[i], text) == 0)
            return i;
    return -1;
}

static bool within(const struct opt *o, int64_t v)
{
    int64_t top = o->max != 0 ? o->max : o->type == OPT_INT ? INT_MAX : INT64_MAX;
    return v >= o->min && v <= top;
}

/* Appends the items of `text`, which are separated by commas, to the list. */
static int add_items(struct opt_parsed *p, const struct opt *o, const char *place,
                     const char *text, struct opt_list *list, struct err *err)
{
    char *copy = own(p, xstrdup(text));
    for (char *item = copy; item != NULL;) {
        char *comma = strchr(item, ',');
        if (comma != NULL)
            *comma = 0;
        if (*item == 0)
            return bad_value(o, place, text, "has an empty item", err);
        if (o->choices != NULL && find_choice(o, item) < 0)
            return bad_value(o, place, item, "is not known", err);
        const char **grown = own(p, xmalloc((size_t)(list->n + 1) * sizeof *grown));
        if (list->n > 0)
            memcpy(grown, list->items, (size_t)list->n * sizeof *grown);
        grown[list->n++] = item;
        list->items = grown;
        item = comma != NULL ? comma + 1 : NULL;
    }
    return 0;
}

/* Parses text as o's type and stores it in the values struct. */
static int set_value(struct opt_parsed *p, const struct opt *o, void *values,
                     const char *place, const char *text, struct err *err)
{
    void *field = (char *)values + o->offset;
    int64_t i;
    uint64_t u;
    double d;
    switch (o->type) {
    case OPT_BOOL:
        if (!parse_bool(text, field))
            return bad_value(o, place, text, "is neither true nor false", err);
        return 0;
    case OPT_INT:
    case OPT_INT64:
        if (o->choices != NULL) {
            CHECK(o->type == OPT_INT);
            i = find_choice(o, text);
            if (i < 0)
                return bad_value(o, place, text, "is not known", err);
        } else if (!parse_int(text, &i)) {
            return bad_value(o, place, text, "is not a whole number", err);
        } else if (!within(o, i)) {
            return bad_value(o, place, text, "is out of bounds", err);
        }
        if (o->type == OPT_INT)
            *(int *)field = (int)i;
        else
            *(int64_t *)field = i;
        return 0;
    case OPT_SIZE:
        if (!opt_size_parse(text, &u))
            return bad_value(o, place, text,
                             "is not a size such as 4096, 64K, 100MB or 1.5G", err);
        if (!within(o, (int64_t)u))
            return bad_value(o, place, text, "is out of bounds", err);
        *(uint64_t *)field = u;
        return 0;
    case OPT_DOUBLE:
        if (!parse_double(text, &d))
            return bad_value(o, place, text, "is not a number", err);
        if (d < o->lo || (o->hi != 0 && d > o->hi))
            return bad_value(o, place, text, "is out of bounds", err);
        *(double *)field = d;
        return 0;
    case OPT_STRING:
        if (o->choices != NULL && find_choice(o, text) < 0)
            return bad_value(o, place, text, "is not known", err);
        *(const char **)field = own(p, xstrdup(text));
        return 0;
    case OPT_LIST:
        return add_items(p, o, place, text, field, err);
    }
    CHECK(false); /* fails for a type that this switch does not handle */
    return ERR_USAGE;
}

/* Sets an option from a source. The list of a stronger source replaces the list of a weaker one;
 * items of the same source are added to its list. */
static int set_option(struct opt_parsed *p, int idx, void *values, enum opt_source source,
                      const char *place, const char *text, struct err *err)
{
    const struct opt *o = &p->cmd->options[idx];
    if (o->type == OPT_LIST && p->source[idx] != source)
        *(struct opt_list *)((char *)values + o->offset) = (struct opt_list){0};
    int rc = set_value(p, o, values, place, text, err);
    p->source[idx] = source;
    return rc;
}

/* --- the table ---------------------------------------------------------------------- */

static int count(const struct opt *table)
{
    int n = 0;
    while (table != NULL && table[n].name != NULL)
        n++;
    return n;
}

/* Compares names. Dashes and underscores are equal, so that a config file may use either. */
static bool same_name(const char *a, const char *b, size_t b_bytes)
{
    if (strlen(a) != b_bytes)
        return false;
    for (size_t i = 0; i < b_bytes; i++)
        if ((a[i] == '_' ? '-' : a[i]) != (b[i] == '_' ? '-' : b[i]))
            return false;
    return true;
}

static int find_option(const struct opt_cmd *cmd, const char *name, size_t name_bytes)
{
    for (int i = 0; i < count(cmd->options); i++)
        if (same_name(cmd->options[i].name, name, name_bytes))
            return i;
    return -1;
}

static int find_letter(const struct opt_cmd *cmd, char letter)
{
    for (int i = 0; i < count(cmd->options); i++)
        if (cmd->options[i].letter == letter)
            return i;
    return -1;
}

/* Reports an unknown option, with the nearest known name. `dashes` is "--" on the command line and
 * "" in a config file. `place` is the start of the message: "FILE:LINE: " or "". */
static int unknown_option(const struct opt_cmd *cmd, const char *place, const char *dashes,
                          const char *name, size_t name_bytes, struct err *err)
{
    const char *names[MAX_OPTIONS + 2];
    int n = count(cmd->options);
    for (int i = 0; i < n; i++)
        names[i] = cmd->options[i].name;
    names[n++] = "config";
    names[n++] = "help";
    char typed[80];
    snprintf(typed, sizeof typed, "%.*s", (int)MIN(name_bytes, 79), name);
    const char *near = opt_nearest(typed, names, n);
    if (near != NULL)
        return err_set(err, ERR_USAGE, "%sunknown option \"%s%s\"; did you mean \"%s%s\"?",
                       place, dashes, typed, dashes, near);
    return err_set(err, ERR_USAGE, "%sunknown option \"%s%s\"", place, dashes, typed);
}

static void set_defaults(struct opt_parsed *p, void *values)
{
    const struct opt_cmd *cmd = p->cmd;
    struct err err = {0};
    memset(values, 0, cmd->values_bytes);
    int rc = 0;
    for (int i = 0; rc == 0 && i < count(cmd->options); i++)
        if (cmd->options[i].def != NULL)
            rc = set_option(p, i, values, OPT_FROM_DEFAULT, "default", cmd->options[i].def,
                            &err);
    for (int i = 0; rc == 0 && i < count(cmd->positionals); i++)
        if (cmd->positionals[i].def != NULL)
            rc = set_value(p, &cmd->positionals[i], values, "default",
                           cmd->positionals[i].def, &err);
    CHECK(rc == 0); /* a default outside its own bounds is a bug */
}

/* --- the command line --------------------------------------------------------------- */

/* One option of the command line. argv is scanned before the other sources are read, because it
 * may name the config file; its settings are applied last, because they are the strongest. */
struct setting {
    int option_idx;
    const char *value;
    char place[80];
};

struct cli {
    struct setting *settings;
    int n_settings;
    const char **positionals;
    int n_positionals;
    const char *config;
    enum opt_help help;
};

static void add_setting(struct cli *cli, int option_idx, const char *value,
                        const char *shown)
{
    struct setting *s = &cli->settings[cli->n_settings++];
    s->option_idx = option_idx;
    s->value = value;
    snprintf(s->place, sizeof s->place, "%s", shown);
}

static int missing_value(const struct opt *o, const char *shown, struct err *err)
{
    char allowed[300];
    opt_allowed(o, allowed, sizeof allowed);
    return err_set(err, ERR_USAGE, "%s needs a value%s%s%s", shown,
                   allowed[0] ? " (allowed: " : "", allowed, allowed[0] ? ")" : "");
}

static enum opt_help help_kind(const char *value)
{
    static const char *const kinds[] = {[OPT_HELP_MARKDOWN] = "markdown",
                                        [OPT_HELP_MAN] = "man",
                                        [OPT_HELP_WORDS] = "words"};
    for (int i = OPT_HELP_MARKDOWN; value != NULL && i <= OPT_HELP_WORDS; i++)
        if (strcmp(value, kinds[i]) == 0)
            return (enum opt_help)i;
    return OPT_HELP_TEXT;
}

/* Scans one argument that begins with "--". Advances *i if the next argument is its value. */
static int scan_long(const struct opt_cmd *cmd, const struct opt_input *in, int *i,
                     struct cli *cli, struct err *err)
{
    const char *name = in->argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const char *value = equals != NULL ? equals + 1 : NULL;
    char shown[80];
    snprintf(shown, sizeof shown, "--%.*s", (int)MIN(n, 70), name);

    if (same_name("help", name, n)) {
        cli->help = help_kind(value);
        return 0;
    }
    bool is_config = same_name("config", name, n);
    int idx = find_option(cmd, name, n);
    bool negated = false;
    if (idx < 0 && n > 3 && strncmp(name, "no-", 3) == 0) {
        idx = find_option(cmd, name + 3, n - 3);
        negated = idx >= 0 && cmd->options[idx].type == OPT_BOOL && value == NULL;
        if (!negated)
            idx = -1;
    }
    if (idx < 0 && !is_config)
        return unknown_option(cmd, "", "--", name, n, err);
    if (!is_config && cmd->options[idx].type == OPT_BOOL) {
        add_setting(cli, idx, value != NULL ? value : negated ? "false" : "true", shown);
        return 0;
    }
    if (value == NULL && *i + 1 < in->argc)
        value = in->argv[++*i];
    if (value == NULL)
        return is_config ? err_set(err, ERR_USAGE, "--config needs a file's name")
                         : missing_value(&cmd->options[idx], shown, err);
    if (is_config)
        cli->config = value;
    else
        add_setting(cli, idx, value, shown);
    return 0;
}

/* Scans a letter option: -i, -n 5, -n5. */
static int scan_letter(const struct opt_cmd *cmd, const struct opt_input *in, int *i,
                       struct cli *cli, struct err *err)
{
    const char *text = in->argv[*i];
    char shown[3] = {'-', text[1], 0};
    int idx = find_letter(cmd, text[1]);
    if (idx < 0 && strcmp(text, "-h") == 0) {
        cli->help = OPT_HELP_TEXT;
        return 0;
    }
    if (idx < 0)
        return err_set(err, ERR_USAGE, "unknown option \"%.40s\"", text);
    bool is_bool = cmd->options[idx].type == OPT_BOOL;
    if (is_bool && text[2] != 0)
        return err_set(err, ERR_USAGE, "%s takes no value: \"%.40s\"", shown, text);
    const char *value = is_bool ? "true" : text[2] != 0 ? text + 2 : NULL;
    if (value == NULL && *i + 1 < in->argc)
        value = in->argv[++*i];
    if (value == NULL)
        return missing_value(&cmd->options[idx], shown, err);
    add_setting(cli, idx, value, shown);
    return 0;
}

static int scan_argv(const struct opt_cmd *cmd, const struct opt_input *in, struct cli *cli,
                     struct err *err)
{
    bool only_positionals = false;
    for (int i = 1; i < in->argc; i++) {
        const char *arg = in->argv[i];
        int rc = 0;
        if (only_positionals || arg[0] != '-' || arg[1] == 0)
            cli->positionals[cli->n_positionals++] = arg;
        else if (strcmp(arg, "--") == 0)
            only_positionals = true;
        else if (arg[1] == '-')
            rc = scan_long(cmd, in, &i, cli, err);
        else
            rc = scan_letter(cmd, in, &i, cli, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_positionals(struct opt_parsed *p, const struct cli *cli, void *values,
                           struct err *err)
{
    const struct opt *table = p->cmd->positionals;
    int n = count(table), used = 0;
    for (int i = 0; i < n; i++) {
        const struct opt *o = &table[i];
        int left = cli->n_positionals - used;
        int take = o->type == OPT_LIST ? left : left > 0 ? 1 : 0;
        if (take < (o->type == OPT_LIST && o->min > 0 ? o->min : o->required ? 1 : 0))
            return err_set(err, ERR_USAGE, "%s is missing", o->name);
        if (o->type == OPT_LIST && o->max != 0 && take > o->max)
            return err_set(err, ERR_USAGE, "too many arguments: at most %lld %s",
                           (long long)o->max, o->name);
        if (o->type == OPT_LIST && take > 0) {
            /* Items are added one by one and not split at commas: a file's name may contain one. */
            struct opt_list *list = (struct opt_list *)((char *)values + o->offset);
            list->items = own(p, xmalloc((size_t)take * sizeof *list->items));
            for (list->n = 0; list->n < take; list->n++)
                list->items[list->n] = own(p, xstrdup(cli->positionals[used + list->n]));
        } else if (take > 0) {
            int rc = set_value(p, o, values, o->name, cli->positionals[used], err);
            if (rc != 0)
                return rc;
        }
        used += take;
    }
    if (used < cli->n_positionals)
        return err_set(err, ERR_USAGE, "unexpected argument \"%.80s\"",
                       cli->positionals[used]);
    return 0;
}

/* --- the config file ---------------------------------------------------------------- */

static char *trim(char *s)
{
    while (*s == ' ' || *s == '\t')
        s++;
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]) != NULL)
        s[--n] = 0;
    return s;
}

/* Returns the value of a line: a quoted text, or the text up to a # that follows white space.
 * Returns NULL if quotes are unbalanced. */
static char *config_value(char *s)
{
    s = trim(s);
    if (*s == '"') {
        char *end = strchr(s + 1, '"');
        if (end == NULL)
            return NULL;
        char *rest = trim(end + 1);
        if (*rest != 0 && *rest != '#')
            return NULL;
        *end = 0;
        return s + 1;
    }
    for (char *c = s; *c != 0; c++)
        if (*c == '#' && (c == s || c[-1] == ' ' || c[-1] == '\t')) {
            *c = 0;
            break;
        }
    return trim(s);
}

static int set_from_config(struct opt_parsed *p, void *values, const char *path,
                           char *bytes, size_t n, struct err *err)
{
    if (memchr(bytes, 0, n) != NULL)
        return err_set(err, ERR_USAGE, "%s: is not a text file", path);
    char *line = bytes;
    for (int line_no = 1; line != NULL; line_no++) {
        char *next = strchr(line, '\n');
        if (next != NULL)
            *next++ = 0;
        char *key = trim(line);
        line = next;
        if (*key == 0 || *key == '#')
            continue;
        char place[200];
        snprintf(place, sizeof place, "%.100s:%d: ", path, line_no);
        char *equals = strchr(key, '=');
        if (equals == NULL)
            return err_set(err, ERR_USAGE, "%s\"%.80s\" is not a line \"option = value\"",
                           place, key);
        *equals = 0;
        key = trim(key);
        char *value = config_value(equals + 1);
        if (value == NULL)
            return err_set(err, ERR_USAGE, "%s%.60s: the quotes do not match", place, key);
        int idx = find_option(p->cmd, key, strlen(key));
        if (idx < 0)
            return unknown_option(p->cmd, place, "", key, strlen(key), err);
        size_t used = strlen(place);
        snprintf(place + used, sizeof place - used, "%s", p->cmd->options[idx].name);
        int rc = set_option(p, idx, values, OPT_FROM_FILE, place, value, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_config(struct opt_parsed *p, const struct opt_input *in, const char *path,
                       void *values, struct err *err)
{
    char *bytes = NULL;
    size_t n = 0;
    if (in->read_file == NULL)
        return err_set(err, ERR_USAGE, "--config: files cannot be read here");
    int rc = in->read_file(in->ctx, path, &bytes, &n, err);
    if (rc != 0)
        return rc;
    char *text = xrealloc(bytes, n + 1);
    text[n] = 0;
    rc = set_from_config(p, values, path, text, n, err);
    free(text);
    return rc;
}

/* --- all sources together ----------------------------------------------------------- */

static const char *env_value(const struct opt_input *in, const char *name)
{
    char env[80];
    if (in->getenv == NULL)
        return NULL;
    opt_env_name(name, env, sizeof env);
    const char *value = in->getenv(in->ctx, env);
    return value != NULL && *value != 0 ? value : NULL;
}

static int set_from_env(struct opt_parsed *p, const struct opt_input *in, void *values,
                        struct err *err)
{
    for (int i = 0; i < count(p->cmd->options); i++) {
        const char *value = env_value(in, p->cmd->options[i].name);
        if (value == NULL)
            continue;
        char env[80];
        opt_env_name(p->cmd->options[i].name, env, sizeof env);
        int rc = set_option(p, i, values, OPT_FROM_ENV, env, value, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Checks required options and the lengths of lists, after all sources were read. */
static int check_whole(const struct opt_parsed *p, const void *values, struct err *err)
{
    for (int i = 0; i < count(p->cmd->options); i++) {
        const struct opt *o = &p->cmd->options[i];
        if (o->required && p->source[i] == OPT_FROM_DEFAULT)
            return err_set(err, ERR_USAGE, "--%s is required", o->name);
        if (o->type != OPT_LIST || p->source[i] == OPT_FROM_DEFAULT)
            continue;
        int n = ((const struct opt_list *)((const char *)values + o->offset))->n;
        if (n < o->min)
            return err_set(err, ERR_USAGE, "--%s: %d items (allowed: at least %lld)",
                           o->name, n, (long long)o->min);
        if (o->max != 0 && n > o->max)
            return err_set(err, ERR_USAGE, "--%s: %d items (allowed: at most %lld)",
                           o->name, n, (long long)o->max);
    }
    return 0;
}

static int apply_sources(struct opt_parsed *p, const struct opt_input *in,
                         const struct cli *cli, void *values, struct err *err)
{
    const char *config = cli->config != NULL ? cli->config : env_value(in, "config");
    int rc = config != NULL ? read_config(p, in, config, values, err) : 0;
    if (rc == 0)
        rc = set_from_env(p, in, values, err);
    for (int i = 0; rc == 0 && i < cli->n_settings; i++)
        rc = set_option(p, cli->settings[i].option_idx, values, OPT_FROM_CLI,
                        cli->settings[i].place, cli->settings[i].value, err);
    if (rc == 0)
        rc = set_positionals(p, cli, values, err);
    if (rc == 0)
        rc = check_whole(p, values, err);
    return rc;
}

int opt_parse(const struct opt_cmd *cmd, const struct opt_input *in, void *values,
              struct opt_parsed **parsed, enum opt_help *help, struct err *err)
{
    CHECK(count(cmd->options) <= MAX_OPTIONS);
    struct opt_parsed *p = xcalloc(1, sizeof *p);
    p->cmd = cmd;
    *parsed = NULL;
    set_defaults(p, values);

    size_t n = in->argc > 0 ? (size_t)in->argc : 1;
    struct cli cli = {.settings = xcalloc(n, sizeof *cli.settings),
                      .positionals = xcalloc(n, sizeof *cli.positionals)};
    int rc = scan_argv(cmd, in, &cli, err);
    *help = cli.help;
    if (rc == 0 && cli.help == OPT_HELP_NONE)
        rc = apply_sources(p, in, &cli, values, err);
    free(cli.settings);
    free(cli.positionals);
    if (rc == 0)
        *parsed = p;
    else
        opt_end(p);
    return rc;
}

enum opt_source opt_source_of(const struct opt_parsed *p, const char *name)
{
    int idx = find_option(p->cmd, name, strlen(name));
    CHECK(idx >= 0);
    return p->source[idx];
}

/* --- the process -------------------------------------------------------------------- */

static const char *process_env(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name);
}

static int process_file(void *ctx, const char *path, char **bytes, size_t *n,
                        struct err *err)
{
    (void)ctx;
    int rc = file_read(path, CONFIG_MAX_BYTES, bytes, n, err);
    return rc != 0 ? err_wrap(err, "--config") : 0;
}

int opt_usage(const struct opt_cmd *cmd, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "hcache %s: ", cmd->name);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\nsee: hcache %s --help\n", cmd->name);
    va_end(ap);
    return 2;
}

int opt_product(const struct opt_cmd *cmd, int argc, char **argv, const char *const *names)
{
    struct opt_input in = {
        .argc = argc, .argv = argv, .getenv = process_env, .read_file = process_file};
    struct opt_parsed *parsed = NULL;
    enum opt_help help;
    char *values = xcalloc(1, cmd->values_bytes);
    int rc = opt_parse(cmd, &in, values, &parsed, &help, NULL);
    int64_t product = 1;
    for (; rc == 0 && help == OPT_HELP_NONE && *names != NULL; names++) {
        int i = find_option(cmd, *names, strlen(*names));
        if (i >= 0)
            product *= *(int *)(void *)(values + cmd->options[i].offset);
    }
    opt_end(parsed);
    free(values);
    return product > 0 && product < INT_MAX ? (int)product : 1;
}

bool opt_begin(const struct opt_cmd *cmd, int argc, char **argv, void *values,
               struct opt_parsed **parsed, int *exit_code)
{
    struct opt_input in = {
        .argc = argc, .argv = argv, .getenv = process_env, .read_file = process_file};
    struct err err = {0};
    enum opt_help help;
    int rc = opt_parse(cmd, &in, values, parsed, &help, &err);
    if (rc != 0) {
        *exit_code = opt_usage(cmd, "%s", err.msg);
        return false;
    }
    *exit_code = 0;
    if (help == OPT_HELP_NONE)
        return true;
    static void (*const print[])(const struct opt_cmd *, FILE *) = {
        [OPT_HELP_TEXT] = opt_print_help,
        [OPT_HELP_MARKDOWN] = opt_print_markdown,
        [OPT_HELP_MAN] = opt_print_man,
        [OPT_HELP_WORDS] = opt_print_words,
    };
    print[help](cmd, stdout);
    opt_end(*parsed);
    *parsed = NULL;
    return false;
}
