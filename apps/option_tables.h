/* option_tables.h - the option tables of all commands, and what is asked of all of them together. */
#ifndef APPS_OPTION_TABLES_H
#define APPS_OPTION_TABLES_H

#include "base/opt.h"

/* Each is defined beside its table. */
extern const struct opt_cmd *const options_of_profile,
    *const options_of_store_stat,
        *const options_of_store_ls,
            *const options_of_store_verify,
                *const options_of_store_gc,
                    *const options_of_run,
                        *const options_of_serve,
                            *const options_of_ppl,
                                *const options_of_model_info,
                                    *const options_of_model_synth,
                                        *const options_of_ingest,
                                            *const options_of_tokenize,
                                                *const options_of_plan,
                                                    *const options_of_bench_beside,
                                                        *const options_of_bench_restore,
                                                            *const options_of_bench_kernels,
                                                                *const options_of_bench_ablation,
                                                                    *const options_of_bench_serve,
                                                                        *const options_of_bench_device,
                                                                            *const options_of_bench_resume,
                                                                                *const
                                                                                    options_of_bench_save;

/* Names every environment variable HCACHE_... that no command and no part of the program reads, one line each on
 * stderr, with the name that was probably meant.  Returns how many there are. */
int option_tables_check_environment(char *const *environment);

#endif
