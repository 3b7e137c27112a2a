/* opt_pages.c - an option table as a man page and as words for a shell's completion (see opt.h). */
#include "opt/opt.h"

#include <string.h>

#include "opt/opt_parts.h"

/* --- man pages ------------------------------------------------------------------------ */

/* Prints text for roff: a line must not begin with a dot or a quote, and "-" and "\" are
 * escaped. */
static void put_roff(FILE *out, const char *text)
{
    bool line_begins = true;
    for (; *text != 0; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        line_begins = *text == '\n';
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else
            fputc(*text, out);
    }
}

static void put_option(FILE *out, char letter, const char *name, const char *arg,
                       const char *text)
{
    fputs(".TP\n", out);
    if (letter != 0)
        fprintf(out, "\\fB\\-%c\\fR, ", letter);
    fputs("\\fB\\-\\-", out);
    put_roff(out, name);
    fputs("\\fR", out);
    if (*arg != 0) {
        fputs(" \\fI", out);
        put_roff(out, arg);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    put_roff(out, text);
    fputc('\n', out);
}

static void put_synopsis(const struct opt_cmd *cmd, FILE *out)
{
    fprintf(out, ".SH SYNOPSIS\n\\fBhcache %s\\fR [\\fIOPTION\\fR]...", cmd->name);
    for (const struct opt *o = cmd->positionals; o != NULL && o->name != NULL; o++) {
        bool needed = o->required || (o->type == OPT_LIST && o->min > 0);
        fprintf(out, needed ? " \\fI%s\\fR%s" : " [\\fI%s\\fR%s]", o->name,
                o->type == OPT_LIST ? "..." : "");
    }
    fputc('\n', out);
}

/* Returns the length of a summary's first clause. A full stop, colon or semicolon ends the clause,
 * but only before a space, a line break or the end of the text: not the dot in "1.5". */
static int first_clause(const char *summary)
{
    size_t n = 0;
    while (summary[n] != 0) {
        n += strcspn(summary + n, ".:;");
        /* strchr also finds the zero byte that ends its first argument */
        if (summary[n] == 0 || strchr(" \n", summary[n + 1]) != NULL)
            break;
        n++;
    }
    return (int)n;
}

void opt_print_man(const struct opt_cmd *cmd, FILE *out)
{
    char arg[200], text[800], page[80];
    snprintf(page, sizeof page, "hcache-%s", cmd->name);
    for (char *c = page; *c != 0; c++)
        *c = *c == ' ' ? '-' : *c;
    fprintf(out, ".TH \"%s\" 1 \"\" \"hcache\" \"hcache\"\n.SH NAME\n", page);
    put_roff(out, page);
    fputs(" \\- ", out);
    const char *summary = cmd->summary != NULL ? cmd->summary : "";
    snprintf(text, sizeof text, "%.*s", first_clause(summary), summary);
    put_roff(out, text);
    fputc('\n', out);
    put_synopsis(cmd, out);
    fputs(".SH DESCRIPTION\n", out);
    put_roff(out, summary);
    fputs("\n", out);
    if (cmd->positionals != NULL && cmd->positionals[0].name != NULL)
        fputs(".SH ARGUMENTS\n", out);
    for (const struct opt *o = cmd->positionals; o != NULL && o->name != NULL; o++) {
        struct opt plain = *o;
        plain.required = false; /* the synopsis already shows it */
        opt_explain(&plain, text, sizeof text);
        fprintf(out, ".TP\n\\fI%s\\fR\n", o->name);
        put_roff(out, text);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n", out);
    for (const struct opt *o = cmd->options; o != NULL && o->name != NULL; o++) {
        opt_explain(o, text, sizeof text);
        put_option(out, o->letter, o->name, opt_arg_text(o, arg, sizeof arg), text);
    }
    put_option(out, 0, "config", "FILE",
               "read options from FILE: lines \"option = value\"");
    put_option(out, 'h', "help", "", "print a summary of the options");
    fputs(
        ".SH ENVIRONMENT\nAn option \\-\\-some\\-name can also be set by the environment "
        "variable "
        "HCACHE_SOME_NAME or in the config file. Command-line options override environment "
        "variables, which override the file.\n",
        out);
    if (cmd->examples != NULL) {
        fputs(".SH EXAMPLES\n.nf\n", out);
        put_roff(out, cmd->examples);
        fputs(".fi\n", out);
    }
    fputs(".SH EXIT STATUS\n0: success. 1: a fault, with its message on stderr. 2: "
          "unusable arguments.\n.SH SEE ALSO\n\\fBhcache\\fR(1)\n",
          out);
}

/* --- completion ----------------------------------------------------------------------- */

static const char *kind_of(const struct opt *o)
{
    char arg[200];
    if (o->type == OPT_BOOL)
        return "flag";
    if (o->choices != NULL)
        return "choice";
    const char *a = opt_arg_text(o, arg, sizeof arg);
    if (strncmp(a, "DIR", 3) == 0)
        return "dir";
    return strncmp(a, "FILE", 4) == 0 ? "file" : "value";
}

void opt_print_words(const struct opt_cmd *cmd, FILE *out)
{
    for (const struct opt *o = cmd->options; o != NULL && o->name != NULL; o++) {
        fprintf(out, "--%s %s", o->name, kind_of(o));
        for (int i = 0; o->choices != NULL && o->choices[i] != NULL; i++)
            fprintf(out, " %s", o->choices[i]);
        fputc('\n', out);
    }
    fputs("--config file\n--help flag\n", out);
}
