/* kern_q4_table.h - the table of one instruction set's kernels of 4-bit weights. */
static bool runs_here(void)
{
    return Q4_RUNS;
}

#ifndef Q4_FEW
#define Q4_FEW        direct
#define Q4_FEW_STREAM direct_stream
#endif

const struct quant_kernels Q4_TABLE = {
    .name = Q4_NAME,
    .runs_here = runs_here,
    .direct_rows = Q4_DIRECT,
#ifdef Q4_STRIPS
    .strip_rows = Q4_STRIPS,
#endif
    .direct = Q4_FEW,
    .direct_stream = Q4_FEW_STREAM,
    .blocked = Q4_BLOCKED,
    .round_row = round_row,
};
