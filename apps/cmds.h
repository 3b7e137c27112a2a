/* cmds.h - the subcommands. Each takes its own name as argv[0] and returns the exit code: 0
 * success, 1 a fault with its message on stderr, 2 unusable arguments. */
#ifndef APPS_CMDS_H
#define APPS_CMDS_H

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_profile(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_model(int argc, char **argv);
int cmd_model_pack(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_ingest(int argc, char **argv);
int cmd_ppl(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_why(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
