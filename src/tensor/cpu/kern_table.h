/* kern_table.h - the table of one instruction set's kernels. */
const struct cpu_kernels VEC_TABLE = {
    .isa = VEC_ISA,
    .direct_rows = MM_ROWS,
    .mm_direct = mm_direct,
    .mm_blocked = mm_blocked,
    .rms_row = rms_row,
    .layer_row = layer_row,
    .scale_row = scale_row,
    .add_row = add_row,
    .act_row = act_row,
    .finite_row = finite_row,
    .rope_head = rope_head,
    .max_row = max_row,
    .sample_row_exp = sample_row_exp,
    .kv_fill = kv_fill,
    .kv_load = kv_load,
    .attention = attention,
};
