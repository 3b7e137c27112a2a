/* opt_help.c - an option table in words: --help, Markdown, bounds for messages (see opt.h). */
#include "opt/opt_parts.h"

#include <limits.h>
#include <string.h>

#define WIDTH     92 /* columns of --help */
#define HELP_FROM 30 /* the column where explanations begin */

void opt_env_name(const char *name, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "HCACHE_%s", name);
    for (char *c = out; *c != 0; c++) {
        if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 32);
        else if (*c == '-')
            *c = '_';
    }
}

void opt_size_text(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char letters[] = " KMGT";
    int unit = 0;
    while (unit < 4 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, out_bytes, "%llu%.*s", (unsigned long long)bytes, unit > 0,
             letters + unit);
}

/* Writes "a, b or c" with the given marks between the words, cut at out_bytes. */
static void join(const char *const *words, const char *mark, const char *last_mark,
                 char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; words[i] != NULL && used < out_bytes; i++) {
        const char *m = i == 0 ? "" : words[i + 1] == NULL ? last_mark : mark;
        int n = snprintf(out + used, out_bytes - used, "%s%s", m, words[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

static void bound_text(const struct opt *o, int64_t v, char *out, size_t out_bytes)
{
    if (o->type == OPT_SIZE)
        opt_size_text((uint64_t)v, out, out_bytes);
    else
        snprintf(out, out_bytes, "%lld", (long long)v);
}

void opt_allowed(const struct opt *o, char *out, size_t out_bytes)
{
    char a[40], b[40];
    out[0] = 0;
    if (o->choices != NULL) {
        join(o->choices, ", ", " or ", out, out_bytes);
        return;
    }
    switch (o->type) {
    case OPT_INT:
    case OPT_INT64:
    case OPT_SIZE:
        bound_text(o, o->min, a, sizeof a);
        bound_text(o, o->max, b, sizeof b);
        bool below = o->min != INT_MIN && o->min != INT64_MIN;
        bool above = o->max != 0 && o->max != INT64_MAX;
        if (below && above)
            snprintf(out, out_bytes, "%s to %s", a, b);
        else if (above)
            snprintf(out, out_bytes, "at most %s", b);
        else if (below && (o->min != 0 || o->type != OPT_SIZE))
            snprintf(out, out_bytes, "at least %s", a);
        return;
    case OPT_DOUBLE:
        if (o->hi != 0)
            snprintf(out, out_bytes, "%g to %g", o->lo, o->hi);
        else
            snprintf(out, out_bytes, "at least %g", o->lo);
        return;
    case OPT_BOOL:
        snprintf(out, out_bytes, "true or false");
        return;
    case OPT_STRING:
    case OPT_LIST:
        return;
    }
}

const char *opt_arg_text(const struct opt *o, char *out, size_t out_bytes)
{
    static const char *const by_type[] = {
        [OPT_BOOL] = "",       [OPT_INT] = "N",    [OPT_INT64] = "N",
        [OPT_SIZE] = "BYTES",  [OPT_DOUBLE] = "X", [OPT_STRING] = "TEXT",
        [OPT_LIST] = "A,B,..."};
    if (o->arg != NULL)
        return o->arg;
    if (o->choices == NULL)
        return by_type[o->type];
    join(o->choices, "|", "|", out, out_bytes);
    return out;
}

void opt_explain(const struct opt *o, char *out, size_t out_bytes)
{
    char allowed[300];
    opt_allowed(o, allowed, sizeof allowed);
    /* Choices are already shown as the value's name, and a minimum of 0 is not worth showing. */
    if ((o->choices != NULL && o->arg == NULL) || o->type == OPT_BOOL ||
        strcmp(allowed, "at least 0") == 0)
        allowed[0] = 0;
    const char *def = o->def != NULL ? o->def : "";
    if (o->type == OPT_BOOL && strcmp(def, "false") == 0)
        def = "";
    const char *first = *def ? "default " : o->required ? "required" : "";
    size_t n = (size_t)snprintf(out, out_bytes, "%s", o->help != NULL ? o->help : "");
    if (n < out_bytes && (*first || *allowed))
        snprintf(out + n, out_bytes - n, " (%s%s%s%s)", first, def,
                 *first && *allowed ? "; " : "", allowed);
}

/* Prints text in the columns from `from` to WIDTH, in as many lines as needed. `column` is the end
 * of the text already printed on the present line. */
static void print_wrapped(FILE *out, int column, int from, const char *text)
{
    if (column > from - 2)
        fprintf(out, "\n%*s", from, "");
    else
        fprintf(out, "%*s", from - column, "");
    column = from;
    while (*text != 0) {
        int n = (int)strcspn(text, " ");
        if (column > from && column + 1 + n > WIDTH) {
            fprintf(out, "\n%*s", from, "");
            column = from;
        } else if (column > from) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_option(FILE *out, char letter, const char *name, const char *arg,
                         const char *text)
{
    char left[200];
    char short_name[5] = "    ";
    if (letter != 0)
        snprintf(short_name, sizeof short_name, "-%c, ", letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", short_name, name, *arg ? " " : "",
                     arg);
    fputs(left, out);
    print_wrapped(out, n, HELP_FROM, text);
}

static void print_usage(const struct opt_cmd *cmd, FILE *out)
{
    fprintf(out, "hcache %s [OPTION]...", cmd->name);
    for (const struct opt *o = cmd->positionals; o != NULL && o->name != NULL; o++) {
        bool needed = o->required || (o->type == OPT_LIST && o->min > 0);
        fprintf(out, needed ? " %s%s" : " [%s%s]", o->name,
                o->type == OPT_LIST ? "..." : "");
    }
}

void opt_print_help(const struct opt_cmd *cmd, FILE *out)
{
    char arg[200], text[800];
    fprintf(out, "usage: ");
    print_usage(cmd, out);
    fprintf(out, "\n");
    if (cmd->summary != NULL) {
        fputc('\n', out);
        print_wrapped(out, 0, 2, cmd->summary);
    }
    if (cmd->positionals != NULL && cmd->positionals[0].name != NULL)
        fprintf(out, "\narguments:\n");
    for (const struct opt *o = cmd->positionals; o != NULL && o->name != NULL; o++) {
        struct opt plain = *o;
        plain.required = false; /* the usage line already shows it */
        opt_explain(&plain, text, sizeof text);
        int n = fprintf(out, "  %s", o->name);
        print_wrapped(out, n, HELP_FROM, text);
    }
    fprintf(out, "\noptions:\n");
    for (const struct opt *o = cmd->options; o != NULL && o->name != NULL; o++) {
        opt_explain(o, text, sizeof text);
        print_option(out, o->letter, o->name, opt_arg_text(o, arg, sizeof arg), text);
    }
    print_option(out, 0, "config", "FILE",
                 "read options from FILE: lines \"option = value\"");
    print_option(out, 'h', "help", "", "print this");
    fprintf(out, "\nAn option --some-name can also be set by the environment variable "
                 "HCACHE_SOME_NAME or in\nthe config file. Command-line options override "
                 "environment variables, which override the\nfile.\n");
    if (cmd->examples != NULL)
        fprintf(out, "\nexamples:\n%s", cmd->examples);
}

static void print_cell(FILE *out, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void print_row(FILE *out, const struct opt *o, bool positional)
{
    char arg[200], allowed[300], env[80];
    const char *a = opt_arg_text(o, arg, sizeof arg);
    opt_allowed(o, allowed, sizeof allowed);
    opt_env_name(o->name, env, sizeof env);
    fprintf(out, "| `");
    if (positional) {
        print_cell(out, o->name);
    } else {
        if (o->letter != 0)
            fprintf(out, "-%c`, `", o->letter);
        fprintf(out, "--%s%s", o->name, *a ? " " : "");
        print_cell(out, a);
    }
    fprintf(out, "` | ");
    print_cell(out, o->def != NULL ? o->def : "");
    fprintf(out, " | ");
    print_cell(out, allowed);
    fprintf(out, " | %s%s%s | ", positional ? "" : "`", positional ? "" : env,
            positional ? "" : "`");
    print_cell(out, o->help != NULL ? o->help : "");
    fprintf(out, " |\n");
}

void opt_print_markdown(const struct opt_cmd *cmd, FILE *out)
{
    fprintf(out, "### hcache %s\n\n", cmd->name);
    if (cmd->summary != NULL)
        fprintf(out, "%s\n\n", cmd->summary);
    fprintf(out, "    ");
    print_usage(cmd, out);
    fprintf(out, "\n\n| option | default | allowed | environment | meaning |\n"
                 "|---|---|---|---|---|\n");
    for (const struct opt *o = cmd->positionals; o != NULL && o->name != NULL; o++)
        print_row(out, o, true);
    for (const struct opt *o = cmd->options; o != NULL && o->name != NULL; o++)
        print_row(out, o, false);
    if (cmd->examples != NULL)
        fprintf(out, "\n```\n%s```\n", cmd->examples);
    fputc('\n', out);
}

/* --- suggestions -------------------------------------------------------------------- */

/* Returns the number of typing mistakes between two words: a letter added, left out or changed, or
 * two neighbours exchanged. Words of 40 letters or more count as far apart. */
static int distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX)
        return MAX;
    /* rows[i % 3][j]: distance of a's first i letters from b's first j */
    int rows[3][MAX + 1];
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *row = rows[i % 3];
        /* above: row i - 1; before: row i - 2 */
        const int *above = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *opt_nearest(const char *typed, const char *const *words, int n)
{
    const char *best = NULL;
    /* At most a third of the letters may be mistyped, or one letter of a word of 1 or 2 letters.
     * With more mistakes the user meant a word that is not in the list. */
    int best_distance = (strlen(typed) < 3 ? 1 : (int)strlen(typed) / 3) + 1;
    for (int i = 0; i < n; i++) {
        int d = distance(typed, words[i]);
        if (strlen(typed) >= 3 && strncmp(typed, words[i], strlen(typed)) == 0)
            d = 0;
        if (d < best_distance) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}
