/* tiers_figures.h - rows and figures of `hcache bench tiers`: gates, AttentionStore's figures, CSV
 * and the page. */
#ifndef BENCH_TIERS_FIGURES_H
#define BENCH_TIERS_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "store/placement.h"
#include "sim/load.h"

struct tiers_row {
    enum placement_kind policy;
    uint64_t blocks; /* size of the cache; 0: closed load */
    double memory_bytes, disk_bytes;
    int window;
    uint64_t n_references;
    double hit_rate, memory_share, seconds_saved, written_bytes;
    double gap_closed;
    bool has_gap;
};

enum { TIERS_MAX_FIGURES = 128, TIERS_LAST_FIGURE = 24 };

struct tiers_figure {
    int figure; /* number of the paper's figure; 0: a gate on the rows */
    char row[64];
    double paper; /* the paper's value; for a gate, the least value that meets it */
    double ours;
    const char *gate; /* the condition in words; "": no condition */
    bool is_ok;
    const char *why; /* why our value differs from the paper's */
};

struct tiers_report {
    struct tiers_row *row;
    int n_rows;
    uint64_t n_references; /* total over all rows */
    double wall_s;
    struct tiers_figure figure[TIERS_MAX_FIGURES];
    int n_figures;
};

/* Adds the conditions that the rows must meet. */
void tiers_gates(struct tiers_report *r, const char *load);
/* Adds the wanted figures among 13 to 17 and 21 to 24, from the chats of the closed load. */
void tiers_figures(struct tiers_report *r, const struct load *chats,
                   const bool wanted[TIERS_LAST_FIGURE + 1]);

int tiers_write_csv(const struct tiers_report *r, const char *path, struct err *err);
int tiers_write_page(const struct tiers_report *r, const char *load, const char *path,
                     struct err *err);

#endif
