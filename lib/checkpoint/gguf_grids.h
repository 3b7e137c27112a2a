/* gguf_grids.h - the grids of IQ2 and IQ3: an index stands for 8 or 4 numbers at once.  Private to
 * src/model.
 *
 * A point of an IQ2 grid has 8 coordinates of 2 bits, one of an IQ3 grid 4 of 3 bits, the first in
 * the lowest bits.  A coordinate is the index of a value (gguf_types.c). */
#ifndef CHECKPOINT_GGUF_GRIDS_H
#define CHECKPOINT_GGUF_GRIDS_H

#include <stdint.h>

extern const uint16_t gguf_grid_iq2_xxs[256], gguf_grid_iq2_xs[512], gguf_grid_iq2_s[1024],
    gguf_grid_iq3_xxs[256], gguf_grid_iq3_s[512];

#endif
