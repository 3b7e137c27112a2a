/* option_tables.h - the option tables of all commands, and checks over all of them. */
#ifndef APPS_OPTION_TABLES_H
#define APPS_OPTION_TABLES_H

#include "opt/opt.h"

/* Each table is defined in the file of its command. */
extern const struct opt_cmd *const options_of_profile;
extern const struct opt_cmd *const options_of_store_stat;
extern const struct opt_cmd *const options_of_store_ls;
extern const struct opt_cmd *const options_of_store_verify;
extern const struct opt_cmd *const options_of_store_rm;
extern const struct opt_cmd *const options_of_store_export;
extern const struct opt_cmd *const options_of_store_import;
extern const struct opt_cmd *const options_of_store_unpin;
extern const struct opt_cmd *const options_of_store_gc;
extern const struct opt_cmd *const options_of_run;
extern const struct opt_cmd *const options_of_serve;
extern const struct opt_cmd *const options_of_ppl;
extern const struct opt_cmd *const options_of_model_info;
extern const struct opt_cmd *const options_of_model_synth;
extern const struct opt_cmd *const options_of_model_pack;
extern const struct opt_cmd *const options_of_batch;
extern const struct opt_cmd *const options_of_ingest;
extern const struct opt_cmd *const options_of_tokenize;
extern const struct opt_cmd *const options_of_why;
extern const struct opt_cmd *const options_of_pull;
extern const struct opt_cmd *const options_of_models;
extern const struct opt_cmd *const options_of_plan;
extern const struct opt_cmd *const options_of_bench_plan;
extern const struct opt_cmd *const options_of_bench_form;
extern const struct opt_cmd *const options_of_bench_pack;
extern const struct opt_cmd *const options_of_bench_tiers;
extern const struct opt_cmd *const options_of_bench_beside;
extern const struct opt_cmd *const options_of_bench_restore;
extern const struct opt_cmd *const options_of_bench_kernels;
extern const struct opt_cmd *const options_of_bench_ablation;
extern const struct opt_cmd *const options_of_bench_serve;
extern const struct opt_cmd *const options_of_bench_device;
extern const struct opt_cmd *const options_of_bench_resume;
extern const struct opt_cmd *const options_of_bench_save;
extern const struct opt_cmd *const options_of_bench_stream;
extern const struct opt_cmd *const options_of_bench_exact;
extern const struct opt_cmd *const options_of_bench_hybrid;
extern const struct opt_cmd *const options_of_bench_hybrid_run;

/* Returns the table of the command that argv[0], or argv[0] and argv[1], name, and its number of
 * words; NULL: none. */
const struct opt_cmd *option_table_of(int argc, char **argv, int *n_words);

/* Warns on stderr of every environment variable HCACHE_... that neither a command nor any other
 * part of the program reads, one line each, with the name that was probably meant.  Returns their
 * number. */
int option_tables_check_environment(char *const *environment);

#endif
