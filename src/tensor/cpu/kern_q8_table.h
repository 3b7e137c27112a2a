/* kern_q8_table.h - the table of one instruction set's kernels of 8-bit weights. */
static bool runs_here(void)
{
    return Q8_RUNS;
}

const struct quant_kernels Q8_TABLE = {
    .name = Q8_NAME,
    .runs_here = runs_here,
    .direct_rows = Q8_DIRECT,
#ifdef Q8_STRIPS
    .strip_rows = Q8_STRIPS,
#endif
    .direct = direct,
    .direct_stream = direct_stream,
    .blocked = Q8_BLOCKED,
    .round_direct = round_row,
    .round_blocked = Q8_ROUND_BLOCKED,
    .pack_row = pack_row,
};
