/* profile.c - a profile's contents and its file; see profile.h. The measurements are in
 * profile_compute.c and profile_io.c. */
#include "restore/profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

static void cpu_name(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, n, "unknown CPU");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, n, "%.40s", colon + 2);
            break;
        }
    }
    if (f != NULL)
        fclose(f);
}

void profile_begin(struct platform *p, const struct model *m,
                   const struct sha256 *fingerprint)
{
    struct utsname u;
    char cpu[48], hex[65];
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    platform_init(p);
    cpu_name(cpu, sizeof cpu);
    if (uname(&u) != 0)
        strcpy(u.nodename, "unknown");
    snprintf(p->machine, sizeof p->machine, "%.24s, %.40s, %s, %d threads", u.nodename, cpu,
             m->dev->name, pool_threads(m->dev->pool));
    p->n_ranks = m->dev->n_ranks;
    p->n_stages = m->dev->n_stages;
    sha256_hex(fingerprint, hex);
    snprintf(p->model, sizeof p->model, "%s", hex);
    snprintf(p->commit, sizeof p->commit, "%s", "-");
    strftime(p->date, sizeof p->date, "%Y-%m-%d", gmtime_r(&now, &tm));
    p->n_layers = config_n_keeping(&m->cfg);
    p->h_bytes = (double)model_hidden_bytes(m);
    p->kv_bytes = model_mean_kv_bytes(m);
}

struct platform_shape profile_shape(const char *name, const struct model_config *c,
                                    double elem_bytes)
{
    struct delta_rule d = model_delta_rule(c, NULL);
    int v = d.n_v * d.d_v, n_recurrent = 0;
    int all = (int)delta_in_cols(&d) + (d.kind == DELTA_SHORT_CONV ? v : 0);
    for (int l = 0; l < c->n_layers; l++)
        n_recurrent += config_is_recurrent(c, l);
    return (struct platform_shape){.name = name,
                                   .n_recurrent = n_recurrent,
                                   .replay_cols = all - d.n_k * d.d_k, /* without q */
                                   .recurrent_cols = all + 2 * v, /* z, and the output */
                                   .n_layers = c->n_layers,
                                   .d_model = c->n_embd,
                                   .n_heads = c->n_heads,
                                   .n_kv_heads = c->n_kv_heads,
                                   .d_head = c->d_head,
                                   .d_ffn = c->n_ffn * MAX(c->n_experts_used, 1) +
                                            c->n_shared_ffn,
                                   .n_vocab = c->vocab_size,
                                   .gated_ffn = c->mlp_gated,
                                   .elem_bytes = elem_bytes};
}

bool profile_is_disturbed(const struct platform *p)
{
    return p->cpu_share > 0 && p->cpu_share < 0.75;
}

char *profile_path(const char *dir, const struct sha256 *fingerprint)
{
    char hex[65];
    sha256_hex(fingerprint, hex);
    return xasprintf("%s/profile-%.16s.txt", dir, hex);
}

/* Refuses costs that were measured, or edited, for another shape: arrays have the model's sizes. */
static int check_shape(const struct platform *p, const struct platform *expected,
                       struct err *err)
{
    if (p->n_layers != expected->n_layers)
        return err_set(err, ERR_MISMATCH, "it is for %d layers, the model has %d",
                       p->n_layers, expected->n_layers);
    if (p->n_ranks != expected->n_ranks || p->n_stages != expected->n_stages)
        return err_set(err, ERR_MISMATCH,
                       "it is for %d stages of %d ranks each, this run has %d of %d",
                       p->n_stages, p->n_ranks, expected->n_stages, expected->n_ranks);
    if (p->h_bytes != expected->h_bytes || p->kv_bytes != expected->kv_bytes)
        return err_set(err, ERR_MISMATCH,
                       "it is for hidden states of %g bytes and K and V of %g bytes, the "
                       "model's have %g and %g",
                       p->h_bytes, p->kv_bytes, expected->h_bytes, expected->kv_bytes);
    return 0;
}

int profile_load(struct platform *p, const char *path, const struct platform *expected,
                 struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = file_read_regular(path, 1 << 20, &text, &n, err);
    if (rc != 0)
        return rc;
    /* A file that was cut off within its last number would still parse. */
    if (n == 0 || text[n - 1] != '\n')
        rc = err_set(err, ERR_FORMAT, "it is cut off");
    if (rc == 0)
        rc = platform_parse(text, n, p, err);
    free(text);
    if (rc == 0)
        rc = platform_check(p, expected->machine, expected->model, err);
    if (rc == 0)
        rc = check_shape(p, expected, err);
    if (rc != 0)
        err_wrap(err, "profile %s", path);
    return rc;
}

int profile_store(const struct platform *p, const char *path, struct err *err)
{
    char text[PLATFORM_FORMAT_MAX];
    int n = platform_format(p, text, sizeof text);
    char *temp = xasprintf("%s.%d.tmp", path, (int)getpid());
    FILE *f = fopen(temp, "w");
    bool good = f != NULL && fchmod(fileno(f), 0600) == 0 &&
                fwrite(text, 1, (size_t)n, f) == (size_t)n;
    if (f != NULL)
        good = fclose(f) == 0 && good;
    good = good && rename(temp, path) == 0;
    int rc = good ? 0
                  : err_set(err, errno != 0 ? -errno : -EIO, "profile %s: %s", path,
                            strerror(errno));
    if (!good)
        unlink(temp);
    free(temp);
    return rc;
}
