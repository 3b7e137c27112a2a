/* table_file.h - makes GGUF files whose embedding table has a chosen type. */
#ifndef TESTS_MODEL_TABLE_FILE_H
#define TESTS_MODEL_TABLE_FILE_H

#include <stdint.h>

/* Writes a copy of tests/model/golden/gguf/mixed.gguf, whose head is a tensor of its own.  Its
 * embedding table has random numbers in blocks of `type` (gguf_types.h): Q4_0, Q4_1, Q4_K, Q5_K or
 * Q6_K.  The table lies at the file's end, at an odd multiple of 32 bytes.  A failure ends the
 * test. */
void table_file_write(const char *path, uint32_t type);

#endif
