/* forms.h - compiled forms of answers (grammar/form.h); private to src/api.
 *
 * The forms that were used last are kept, since agents send the same schema with every request. Any
 * thread may call these functions. */
#ifndef API_FORMS_H
#define API_FORMS_H

#include "base/err.h"
#include "grammar/form.h"
#include "hcache.h"
#include "text/answer_syntax.h"
#include "text/tokenizer.h"

struct hcache_form {
    struct form *form;
};

struct forms;

/* t and its tokens outlive the forms. n_vocab: logits of the model. */
struct forms *forms_create(const struct tokenizer *t, const struct answer_syntax *syntax,
                           int32_t n_vocab);
/* All shares of forms have been released, but for those that are kept here. NULL is allowed. */
void forms_destroy(struct forms *f);

#endif
