/* bytes_text.h - prints sizes for people: "512 B", "1.5 GiB". */
#ifndef APPS_BYTES_TEXT_H
#define APPS_BYTES_TEXT_H

#include <stdint.h>
#include <stdio.h>

static inline void bytes_text(uint64_t n, char out[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    int u = 0;
    for (; v >= 1024 && u < 4; u++)
        v /= 1024;
    snprintf(out, 32, u == 0 ? "%.0f %s" : "%.1f %s", v, unit[u]);
}

#endif
