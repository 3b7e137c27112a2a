/* weights_packed.h - weights from a packed file: read, not converted.  Private to src/model.
 *
 * Every part becomes one piece of device memory, in which the slots lie as in the file
 * (pack_image.h).  A device whose memory is the host's gets them by O_DIRECT straight into place;
 * others by way of pinned memory. */
#ifndef MODEL_WEIGHTS_PACKED_H
#define MODEL_WEIGHTS_PACKED_H

#include "model/weights.h"

/* weights_load of a packed file. ERR_MISMATCH: packed for another layout, or of another shape than
 * this program makes of its configuration. */
int weights_packed_load(struct weights *out, const char *source,
                        const struct model_config *cfg, const struct weights_opts *o,
                        struct err *err);
void weights_packed_unload(struct weights *w);

#endif
