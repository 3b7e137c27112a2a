/* weights_packed.h - reads weights from a packed file, without conversion.  Private to src/model.
 *
 * Every part becomes one piece of device memory, in which the slots lie as in the file
 * (pack_image.h). If the device's memory is the host's, O_DIRECT reads go straight into place;
 * otherwise they go through pinned memory. */
#ifndef MODEL_WEIGHTS_PACKED_H
#define MODEL_WEIGHTS_PACKED_H

#include "model/weights.h"

/* Does the work of weights_load for a packed file. ERR_MISMATCH: the file was packed for another
 * layout, or its parts have other sizes than this program computes from its configuration. */
int weights_packed_load(struct weights *out, const char *source,
                        const struct model_config *cfg, const struct weights_opts *o,
                        struct err *err);
void weights_packed_unload(struct weights *w);

#endif
