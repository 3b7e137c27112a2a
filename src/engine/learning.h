/* learning.h - corrects the platform by the times that restores took (policy/correction.h). Private to
 * src/engine. */
#ifndef ENGINE_LEARNING_H
#define ENGINE_LEARNING_H

#include "engine/seq.h"

/* Before the restore of s, which req was planned from. */
void learning_expect(const struct platform *p, struct seq *s,
                     const struct plan_request *req);
/* After it. */
void learning_observe(struct platform *p, const struct seq *s);

#endif
