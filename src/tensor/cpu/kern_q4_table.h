/* kern_q4_table.h - the table of one instruction set's kernels of 4-bit weights. */
static bool runs_here(void)
{
    return Q4_RUNS;
}

const struct quant_kernels Q4_TABLE = {
    .name = Q4_NAME,
    .runs_here = runs_here,
    .direct_rows = Q4_DIRECT,
#ifdef Q4_STRIPS
    .strip_rows = Q4_STRIPS,
#endif
    .direct = direct,
    .direct_stream = direct_stream,
    .blocked = Q4_BLOCKED,
    .round_row = round_row,
};
