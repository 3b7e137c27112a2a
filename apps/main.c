/* main.c - hcache: finds the subcommand and runs it. The commands are in cmd_NAME.c. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apps/cmds.h"
#include "apps/option_tables.h"
#include "apps/ranks.h"
#include "opt/opt.h"
#include "base/thread.h"
#include "tensor/peers.h"
#include "build_id.h"
#include "hcache.h"

struct cmd {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

/* The commands, in the order in which a newcomer meets them. */
static const struct cmd cmds[] = {
    {"run", cmd_run, "generates text; restores the stored part of the prompt"},
    {"serve", cmd_serve, "serves a model over HTTP, as OpenAI's API does"},
    {"pull", cmd_pull, "fetches a model from a hub"},
    {"batch", cmd_batch, "answers a file of requests, as fast as the machine can"},
    {"plan", cmd_plan,
     "shows how a stored context would be restored on a platform, and why"},
    {"profile", cmd_profile,
     "measures the costs of restoring on this machine, for the planner"},
    {"bench", cmd_bench, "measures this machine, and hcache on it"},
    {"tokenize", cmd_tokenize, "converts text to token ids and back"},
    {"store", cmd_store, "lists and verifies saved state, erases it, frees space"},
    {"ingest", cmd_ingest, "computes the state of documents ahead of their prompts"},
    {"ppl", cmd_ppl, "computes the perplexity of a text under a model"},
    {"model", cmd_model, "describes a model; makes models of random weights"},
    {"models", cmd_models, "lists the fetched models"},
    {"why", cmd_why, "says how the state of a server's answer came back, and why no more"},
    {0},
};

static void print_help(FILE *out)
{
    fprintf(out,
            "usage: hcache COMMAND [OPTION]... [ARGUMENT]...\n\n"
            "An LLM serving engine whose conversations are durable: state that was "
            "computed once\nis restored instead of being computed again.\n\ncommands:\n");
    for (const struct cmd *c = cmds; c->name != NULL; c++)
        fprintf(out, "  %-10s %s\n", c->name, c->help);
    fprintf(out, "\nhcache COMMAND --help explains a command; hcache --version says which "
                 "build this is.\n");
}

/* Returns advice for words that users of other programs type. */
static const char *words_of_others(const char *typed)
{
    static const struct {
        const char *word, *hint;
    } hints[] = {
        {"chat", "to chat in the terminal: hcache run MODEL_DIR -i"},
        {"generate", "to answer one prompt: hcache run MODEL_DIR -p TEXT"},
        {"download", "to fetch a model from a hub: hcache pull OWNER/REPO"},
        {"list", "to list saved state: hcache store ls DIR"},
        {"ls", "to list saved state: hcache store ls DIR"},
        {"server", "to start the server: hcache serve MODEL_DIR"},
        {"version", "to see the version: hcache --version"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (strcmp(typed, hints[i].word) == 0)
            return hints[i].hint;
    return NULL;
}

static int unknown_command(const char *typed)
{
    const char *names[sizeof cmds / sizeof cmds[0]] = {0};
    int n = 0;
    for (const struct cmd *c = cmds; c->name != NULL; c++)
        names[n++] = c->name;
    const char *near = opt_nearest(typed, names, n), *hint = words_of_others(typed);
    fprintf(stderr, "hcache: unknown command \"%s\"", typed);
    if (hint != NULL)
        fprintf(stderr, "; %s", hint);
    else if (near != NULL)
        fprintf(stderr, "; did you mean \"%s\"?", near);
    fprintf(stderr, "\nsee: hcache --help\n");
    return 2;
}

static int run_command(const char *name, int argc, char **argv)
{
    for (const struct cmd *c = cmds; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            return c->run(argc, argv);
    return unknown_command(name);
}

/* Runs hcache help [COMMAND], for users who do not know --help yet. */
static int help_command(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stdout);
        return 0;
    }
    char flag[] = "--help";
    char *help_argv[] = {argv[1], flag, NULL};
    return run_command(argv[1], 2, help_argv);
}

struct line {
    int argc;
    char **argv;
};

static int run_line(void *arg)
{
    const struct line *l = arg;
    int argc = l->argc;
    char **argv = l->argv;
    /* With SIGXFSZ ignored, the store treats the limit on file sizes (ulimit -f) as a full disk;
     * otherwise the signal would end the process. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)option_tables_check_environment(environ);
    int process = 0, n_ranks = ranks_wanted(argc, argv);
    struct err err = {0};
    if (n_ranks > 1)
        return ranks_run(n_ranks, argv);
    if (peers_are_started() && peers_join(&process, &err) != 0) {
        fprintf(stderr, "hcache: %s\n", err.msg);
        return 1;
    }
    if (process > 0)
        return peers_serve();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const char *first = argv[1];
    int code;
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
        print_help(stdout);
        code = 0;
    } else if (strcmp(first, "--version") == 0) {
        printf("hcache %s (%s)\n", HCACHE_VERSION, BUILD_ID);
        code = 0;
    } else if (strcmp(first, "help") == 0) {
        code = help_command(argc - 1, argv + 1);
    } else {
        code = run_command(first, argc - 1, argv + 1);
    }
    /* Output that did not reach its file (a full disk, a closed pipe) is a fault, too. */
    if (fflush(stdout) != 0 && code == 0) {
        perror("hcache: standard output");
        code = 1;
    }
    return code;
}

int main(int argc, char **argv)
{
    return thread_with_stack(run_line, &(struct line){argc, argv});
}
