/* cmd_pull.c - hcache pull: fetches a model from a hub; hcache models: lists what is there.
 *
 * Nothing else in the program fetches anything. A file grows as NAME.part. A connection that breaks
 * goes on where it broke, also in another process. Only a file whose size and digest are those that
 * the hub names gets its name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cmds.h"
#include "apps/http_client.h"
#include "apps/hub.h"
#include "apps/option_tables.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/textbuf.h"

enum {
    MAX_LIST_BYTES = 16 << 20,
    MAX_TRIES = 8, /* without a new byte; then the fetch ends */
    MAX_FILES = 512,
};

struct pull_args {
    const char *name, *models;
};

static const struct opt pull_positionals[] = {
    {"OWNER/REPO[:TYPE]", OPT(struct pull_args, name), .required = true,
     .help = "a repository of the hub, and the type of its GGUF file, as Q4_K_M"},
    {0},
};
#define MODELS_OPTION                                                                      \
    {                                                                                      \
        "models", OPT(struct pull_args, models),                                           \
            .arg = "DIR",                                                                  \
            .help = "folder of fetched models; default: ~/.cache/hcache/models"            \
    }
static const struct opt pull_options[] = {MODELS_OPTION, {0}};

static const struct opt_cmd pull_cmd = {
    .name = "pull",
    .summary =
        "Fetches a model from a hub into the cache folder. `hcache serve OWNER/REPO:TYPE` "
        "finds it there. Without a type it is Q4_K_M, or else the first GGUF file, or else "
        "the checkpoint. HF_ENDPOINT is the hub's address, HF_TOKEN a token for it.",
    .positionals = pull_positionals,
    .options = pull_options,
    .examples = "  hcache pull SomeOne/Model-GGUF:Q4_K_M\n"
                "  hcache serve SomeOne/Model-GGUF:Q4_K_M\n",
    .values_bytes = sizeof(struct pull_args),
};
const struct opt_cmd *const options_of_pull = &pull_cmd;

static const struct opt models_positionals[] = {{0}};
static const struct opt_cmd models_cmd = {
    .name = "models",
    .summary = "Lists the models that `hcache pull` has fetched.",
    .positionals = models_positionals,
    .options = pull_options,
    .values_bytes = sizeof(struct pull_args),
};
const struct opt_cmd *const options_of_models = &models_cmd;

/* --- one file --------------------------------------------------------------------------------- */

struct file {
    char name[256];
    uint64_t size;
    struct sha256 digest;
    bool has_digest;
};

struct sink {
    const struct file *file;
    FILE *out;
    uint64_t n; /* bytes of the file that are there */
    int64_t told_ns;
    int fault; /* errno of a write; 0: none */
    bool is_long;
};

/* Shows the progress on a terminal, a few times a second. */
static void show(struct sink *s, bool ends)
{
    int64_t now = clock_now_ns();
    if (!isatty(STDERR_FILENO) || (!ends && now - s->told_ns < 200000000))
        return;
    s->told_ns = now;
    fprintf(stderr, "\r%s: %.1f of %.1f MB, %d %% ", s->file->name, (double)s->n / 1e6,
            (double)s->file->size / 1e6,
            s->file->size > 0 ? (int)((double)s->n / (double)s->file->size * 100) : 100);
    if (ends)
        fputc('\n', stderr);
}

static int take(void *arg, const void *p, size_t n)
{
    struct sink *s = arg;
    s->is_long = s->n + n > s->file->size;
    if (!s->is_long && fwrite(p, 1, n, s->out) != n)
        s->fault = errno;
    s->n += n;
    show(s, false);
    return s->is_long || s->fault != 0 ? -1 : 0;
}

static int start_again(void *arg)
{
    struct sink *s = arg;
    rewind(s->out);
    s->n = 0;
    return ftruncate(fileno(s->out), 0);
}

static int digest_of(const char *path, struct sha256 *out, struct err *err)
{
    FILE *f = fopen(path, "rb");
    struct sha256_ctx *c = sha256_begin();
    size_t room = 1 << 20, n;
    char *bytes = xmalloc(room);
    int rc = f != NULL ? 0 : err_set(err, -errno, "%s: %s", path, strerror(errno));
    while (rc == 0 && (n = fread(bytes, 1, room, f)) > 0)
        sha256_add(c, bytes, n);
    if (rc == 0 && ferror(f))
        rc = err_set(err, -EIO, "%s: cannot be read", path);
    *out = sha256_end(c);
    free(bytes);
    if (f != NULL)
        fclose(f);
    return rc;
}

/* Fetches until the whole file is there. A connection that breaks is made again, as long as new
 * bytes come. */
static int fetch_all(const char *url, const char *token, struct sink *s, struct err *err)
{
    int rc = -EAGAIN;
    for (int tries = 0; rc == -EAGAIN && tries < MAX_TRIES && s->n < s->file->size;
         tries++) {
        uint64_t before = s->n;
        const struct http_fetch f = {.url = url,
                                     .token = token,
                                     .from = s->n,
                                     .restart = start_again,
                                     .bytes = take,
                                     .arg = s};
        if (tries > 0)
            sleep(1u << (tries < 5 ? tries - 1 : 4));
        rc = http_fetch(&f, err);
        /* A connection may end early without a fault. */
        rc = rc == 0 && s->n < s->file->size
                 ? err_set(err, -EAGAIN, "%s: the connection ended at %llu of %llu bytes",
                           url, (unsigned long long)s->n, (unsigned long long)s->file->size)
                 : rc;
        tries = s->n > before ? 0 : tries;
    }
    if (s->is_long)
        rc = err_set(err, ERR_MISMATCH,
                     "%s has more than the %llu bytes that the hub names", url,
                     (unsigned long long)s->file->size);
    else if (s->fault != 0)
        rc = err_set(err, -s->fault, "cannot write: %s", strerror(s->fault));
    return s->n == s->file->size && rc == -EAGAIN ? 0 : rc;
}

/* Gives a whole file its name, if it is what the hub names. */
static int finish(const struct file *f, const char *part, const char *path, struct err *err)
{
    struct sha256 got;
    char hex[65], want[65];
    int rc = f->has_digest ? digest_of(part, &got, err) : 0;
    if (rc == 0 && f->has_digest && memcmp(&got, &f->digest, sizeof got) != 0) {
        sha256_hex(&got, hex);
        sha256_hex(&f->digest, want);
        unlink(part);
        return err_set(
            err, ERR_MISMATCH,
            "%s: its SHA-256 is %.16s..., and the hub names %.16s...; it was deleted",
            f->name, hex, want);
    }
    if (rc == 0 && rename(part, path) != 0)
        rc = err_set(err, -errno, "%s: %s", path, strerror(errno));
    return rc;
}

static int pull_file(const char *base, const char *token, const char *dir,
                     const struct file *f, struct err *err)
{
    struct stat st;
    char *path = xasprintf("%s/%s", dir, f->name), *part = xasprintf("%s.part", path);
    char *url = xasprintf("%s/resolve/main/%s", base, f->name);
    struct sink s = {.file = f};
    int rc = 0;
    if (stat(path, &st) == 0 && (uint64_t)st.st_size == f->size) {
        printf("%s is there\n", path);
    } else if ((s.out = fopen(part, "ab")) == NULL) {
        rc = err_set(err, -errno, "%s: %s", part, strerror(errno));
    } else {
        s.n = fseeko(s.out, 0, SEEK_END) == 0 ? (uint64_t)ftello(s.out) : 0;
        if (s.n > f->size)
            rc = start_again(&s);
        if (rc == 0)
            rc = fetch_all(url, token, &s, err);
        show(&s, true);
        if ((fflush(s.out) != 0 || fsync(fileno(s.out)) != 0) && rc == 0)
            rc = err_set(err, -errno, "%s: %s", part, strerror(errno));
        fclose(s.out);
        if (rc == 0)
            rc = finish(f, part, path, err);
        if (rc == 0)
            printf("%s, %.1f MB%s\n", path, (double)f->size / 1e6,
                   f->has_digest ? ", its digest is right" : "");
    }
    fflush(stdout);
    free(path);
    free(part);
    free(url);
    return rc;
}

/* --- the repository --------------------------------------------------------------------------- */

static int add_text(void *arg, const void *p, size_t n)
{
    struct textbuf *b = arg;
    return b->n + n <= MAX_LIST_BYTES && textbuf_try_add(b, p, n) ? 0 : -1;
}

/* Reads one entry of the list. Names with a slash lie in folders, and are left out. */
static bool read_entry(const struct json *v, struct file *f)
{
    const struct json *lfs = json_member(v, "lfs");
    const char *path = json_string_of(json_member(v, "path"), NULL);
    const char *type = json_string_of(json_member(v, "type"), NULL);
    const char *oid = json_string_of(json_member(lfs, "oid"), NULL);
    int64_t size = -1;
    if (!json_int_of(json_member(lfs, "size"), &size))
        (void)json_int_of(json_member(v, "size"), &size);
    bool is_plain = path != NULL && path[0] != '.' && strchr(path, '/') == NULL &&
                    strchr(path, '?') == NULL && strchr(path, '#') == NULL &&
                    strlen(path) < sizeof f->name - 8;
    if (!is_plain || type == NULL || strcmp(type, "file") != 0 || size < 0)
        return false;
    *f = (struct file){.size = (uint64_t)size};
    snprintf(f->name, sizeof f->name, "%s", path);
    if (oid != NULL && strncmp(oid, "sha256:", 7) == 0)
        oid += 7;
    f->has_digest = oid != NULL && sha256_parse(oid, &f->digest);
    return true;
}

/* Returns whether a file belongs to a checkpoint in a folder. */
static bool of_checkpoint(const char *name)
{
    static const char *const ends[] = {".safetensors", ".json", ".jinja", ".model",
                                       "merges.txt"};
    size_t n = strlen(name);
    for (int i = 0; i < 5; i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && strcmp(name + n - k, ends[i]) == 0)
            return true;
    }
    return false;
}

/* Returns whether b is a part of the split file whose first part is a. */
static bool same_split(const char *a, const char *b)
{
    const char *of = strstr(a, "-of-");
    size_t n = of != NULL && of - a >= 6 ? (size_t)(of - a) - 5 : 0;
    return strcmp(a, b) == 0 || (n > 0 && strlen(a) == strlen(b) && strncmp(a, b, n) == 0 &&
                                 strcmp(of, b + n + 5) == 0);
}

/* Moves the files that are wanted to the front. Returns their number. */
static int choose(struct file *files, int n, const char *type)
{
    const struct file *first = NULL;
    const char *const wanted[] = {type[0] != 0 ? type : "Q4_K_M", ""};
    for (int w = 0; w < (type[0] != 0 ? 1 : 2) && first == NULL; w++)
        for (int i = 0; i < n; i++)
            if (hub_file_is(files[i].name, wanted[w]) &&
                (first == NULL || strcmp(files[i].name, first->name) < 0))
                first = &files[i];
    if (first == NULL && type[0] != 0)
        return 0;
    int n_wanted = 0;
    char name[sizeof files->name];
    snprintf(name, sizeof name, "%s", first != NULL ? first->name : "");
    for (int i = 0; i < n; i++)
        if (first != NULL ? same_split(name, files[i].name)
                          : of_checkpoint(files[i].name)) {
            struct file f = files[i];
            files[i] = files[n_wanted];
            files[n_wanted++] = f;
        }
    return n_wanted;
}

static int list_files(const char *endpoint, const char *token, const struct hub_name *name,
                      struct file *files, int *n, struct err *err)
{
    char *url = xasprintf("%s/api/models/%s/%s/tree/main", endpoint, name->owner,
                          name->repo);
    struct textbuf text = {0};
    struct json *list = NULL;
    const struct http_fetch f = {
        .url = url, .token = token, .bytes = add_text, .arg = &text};
    int rc = http_fetch(&f, err);
    if (rc == 0)
        rc = json_parse(&list, text.p != NULL ? text.p : "", text.n, url, err);
    *n = 0;
    for (size_t i = 0; rc == 0 && i < json_count(list) && *n < MAX_FILES; i++)
        *n += read_entry(json_at(list, i), &files[*n]);
    json_free(list);
    textbuf_free(&text);
    free(url);
    return rc;
}

/* Makes a folder and those above it. */
static int make_folders(const char *path, struct err *err)
{
    char *copy = xstrdup(path);
    int rc = 0;
    for (char *at = copy + 1; rc == 0 && at != NULL;) {
        at = strchr(at, '/');
        if (at != NULL)
            *at = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            rc = err_set(err, -errno, "%s: %s", copy, strerror(errno));
        if (at != NULL)
            *at++ = '/';
    }
    free(copy);
    return rc;
}

static int pull(const struct pull_args *a, struct err *err)
{
    const char *own = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    const char *endpoint = own != NULL && own[0] != 0 ? own : "https://huggingface.co";
    struct hub_name name;
    struct file *files = xcalloc(MAX_FILES, sizeof *files);
    char *root = hub_folder(a->models), *dir = NULL, *base = NULL;
    int n = 0, rc = hub_name_read(a->name, &name, err);
    token = token != NULL && token[0] != 0 ? token : NULL;
    if (rc == 0 && root == NULL)
        rc = err_set(err, ERR_USAGE, "there is no home directory: give --models DIR");
    if (rc == 0)
        rc = list_files(endpoint, token, &name, files, &n, err);
    int n_wanted = rc == 0 ? choose(files, n, name.type) : 0;
    if (rc == 0 && n_wanted == 0)
        rc = err_set(err, ERR_NOT_FOUND, "%s/%s has no %s%s", name.owner, name.repo,
                     name.type[0] != 0 ? "GGUF file of the type " : "model", name.type);
    if (rc == 0) {
        dir = xasprintf("%s/%s/%s", root, name.owner, name.repo);
        base = xasprintf("%s/%s/%s", endpoint, name.owner, name.repo);
        rc = make_folders(dir, err);
    }
    for (int i = 0; rc == 0 && i < n_wanted; i++)
        rc = pull_file(base, token, dir, &files[i], err);
    free(files);
    free(root);
    free(dir);
    free(base);
    return rc;
}

int cmd_pull(int argc, char **argv)
{
    struct pull_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&pull_cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = pull(&a, &err);
    if (rc != 0)
        fprintf(stderr, "hcache pull: %s\n", err.msg);
    opt_end(parsed);
    return rc != 0;
}

/* --- the list --------------------------------------------------------------------------------- */

static void list_repo(const char *root, const char *owner, const char *repo)
{
    char *dir = xasprintf("%s/%s/%s", root, owner, repo);
    DIR *d = opendir(dir);
    struct stat st;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char *path = xasprintf("%s/%s", dir, e->d_name);
        bool is_model = hub_file_is(e->d_name, "") || strcmp(e->d_name, "config.json") == 0;
        if (is_model && stat(path, &st) == 0)
            printf("%s/%s  %.1f MB  %s\n", owner, repo, (double)st.st_size / 1e6, path);
        free(path);
    }
    if (d != NULL)
        closedir(d);
    free(dir);
}

int cmd_models(int argc, char **argv)
{
    struct pull_args a;
    struct opt_parsed *parsed;
    int code;
    if (!opt_begin(&models_cmd, argc, argv, &a, &parsed, &code))
        return code;
    char *root = hub_folder(a.models);
    DIR *owners = root != NULL ? opendir(root) : NULL;
    for (struct dirent *o; owners != NULL && (o = readdir(owners)) != NULL;) {
        char *dir = xasprintf("%s/%s", root, o->d_name);
        DIR *repos = o->d_name[0] != '.' ? opendir(dir) : NULL;
        for (struct dirent *r; repos != NULL && (r = readdir(repos)) != NULL;)
            if (r->d_name[0] != '.')
                list_repo(root, o->d_name, r->d_name);
        if (repos != NULL)
            closedir(repos);
        free(dir);
    }
    if (owners != NULL)
        closedir(owners);
    free(root);
    opt_end(parsed);
    return 0;
}
