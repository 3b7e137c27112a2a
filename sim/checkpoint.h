/* checkpoint.h - writes the generator's weights (synth:SHAPE) as a checkpoint that other programs
 * can read: for tests and experiments. */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

#include "model/weights.h"

/* Writes DIR/config.json and DIR/model.safetensors with the generator's weights for `cfg`; the
 * tensors equal those of synth:SHAPE bit for bit.  More than 4 GB become several files.  After it
 * returns 0 the model survives a crash; after an error it leaves no config.json in DIR. */
int checkpoint_write(const char *dir, const struct model_config *cfg, enum dtype dtype,
                     struct err *err);

#endif
