/* engine_impl.h - the parts of an engine; private to src/engine and its tests. */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H

#include "engine/mixed.h"
#include "engine/schedule.h"
#include "engine/zigzag.h"

struct engine {
    struct engine_opts o;
    struct seq_shared shared; /* owns pool, work and stream */
    struct next_token next;
    struct zigzag zigzag;
    struct mixed mixed;
    struct step_batch batch;
    struct restore_phase restores;
    struct schedule schedule;
    struct guess_speed guess_speed;
    struct guess_seq *guesses; /* [max_seqs] of one step */
};

#endif
