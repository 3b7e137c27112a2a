/* mem_left.h - the memory that a program has not freed, for its tests. */
#ifndef BASE_MEM_LEFT_H
#define BASE_MEM_LEFT_H

/* Returns how many mappings of mem_map have not been unmapped. */
int mem_mappings(void);

#endif
