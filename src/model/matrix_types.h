/* matrix_types.h - the type in which each matrix of a model is held.  Private to src/model.
 *
 * Models held in f32, f16, bf16 or q8 have one type for all matrices.  In a model held in 4 bits
 * (DTYPE_Q4) each matrix has its own type: the file's 4-bit or 6-bit type if all tensors of the
 * matrix have it, q4_1 if this program converts the matrix to 4 bits, else q8.
 *
 * W_k and W_v are one matrix, SLOT_WKV, if they have one type.  In half of the layers of a Q4_K_M
 * file they have two.  Then SLOT_WKV has only the K rows, and SLOT_WV is a matrix of the V rows. */
#ifndef MODEL_MATRIX_TYPES_H
#define MODEL_MATRIX_TYPES_H

#include "model/weights.h"
#include "model/weights_names.h"
#include "model/weights_source.h"

struct matrix_types {
    /* the type of all matrices; DTYPE_Q4: `head` and `layers` hold each type */
    enum dtype all;
    enum dtype head;
    int n_layers;
    enum dtype *layers; /* [n_layers][N_SLOTS]; NULL unless all is DTYPE_Q4 */
};

/* Chooses the types for a model held as `all`.  set: every tensor of the model. */
void matrix_types_make(struct matrix_types *out, enum dtype all,
                       const struct tensor_set *set, const struct model_config *c);
/* Sets one type for all; for a packed file, its reader then fills in the types. */
void matrix_types_init(struct matrix_types *out, enum dtype all, int n_layers);
void matrix_types_deinit(struct matrix_types *t);
/* Returns whether all rows of the matrices are whole blocks. */
bool matrix_types_fit(const struct matrix_types *t, const struct model_config *c);
/* Returns whether W_k and W_v of a layer are two matrices. */
bool matrix_types_differ_in_kv(const struct matrix_types *t, int layer);
/* Returns the matrix whose type a part of a tensor has: SLOT_WV for rows of W_v, else its slot. */
enum slot matrix_of_part(const struct model_config *c, int l, const struct tensor_part *p);
/* Returns the rows of a matrix on one rank; 0 for SLOT_WV if W_k and W_v are one matrix. */
int64_t matrix_rows(const struct matrix_types *t, const struct model_config *c, int layer,
                    enum slot s, int n_ranks);
/* Deinits and frees the struct; NULL is allowed. */
void matrix_types_free(struct matrix_types *t);

/* Returns a pointer to a matrix's type. `layer` is ignored for the head. SLOT_WV has the type of
 * the V rows in every layer. Not for slots that are always f32. */
enum dtype *matrix_type_at(struct matrix_types *t, int layer, enum slot s);
static inline enum dtype matrix_type(const struct matrix_types *t, int layer, enum slot s)
{
    if (slot_is_f32(s))
        return DTYPE_F32;
    return t->all != DTYPE_Q4 ? t->all
                              : *matrix_type_at((struct matrix_types *)t, layer, s);
}

/* Returns whether any matrix of a set has a 4-bit or 6-bit type. */
bool matrix_types_any_q4(const struct tensor_set *set);

#endif
