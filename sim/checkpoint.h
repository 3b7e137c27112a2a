/* checkpoint.h - writes the generator's weights (synth:SHAPE) as a checkpoint that other programs
 * can read: for tests and experiments. */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

#include "checkpoint/safetensors.h"
#include "model/weights.h"

/* Writes DIR/config.json and DIR/model.safetensors with the generator's weights for `cfg`; the
 * tensors equal those of synth:SHAPE bit for bit.  More than 4 GB become several files.  After it
 * returns 0 the model survives a crash; after an error it leaves no config.json in DIR. */
int checkpoint_write(const char *dir, const struct model_config *cfg, enum dtype dtype,
                     struct err *err);

/* Writes the first bytes of a new file that holds these tensors in this order. It reads each
 * tensor's name, dtype, n_dims and shape, and sets its begin and end. The header is padded so that
 * the data begins at a multiple of 64. The caller frees *out and then writes the tensors one after
 * another. Names must differ and sizes must fit; a violation is a bug and ends the program. */
void safetensors_write_header(struct safetensors_tensor *t, size_t n, uint8_t **out,
                              size_t *n_out);

#endif
