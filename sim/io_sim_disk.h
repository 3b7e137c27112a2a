/* io_sim_disk.h - the content of a simulated disk, and its state after a crash; private to
 * src/io.
 *
 * Pure bookkeeping: no locks, no faults, no handles. A disk is a set of names that lead to nodes
 * (files and folders). Both are kept twice, as the running system sees them and as they are
 * durable, with the list of changes in between.
 *
 *      names  (here)            current <--- changes of names, by folder ---- durable
 *      node   (io_sim_node.h)   current <--- changes of content ------------- durable
 *
 * Paths are absolute and normal ("/a/b"); sim_disk_path makes them so. */
#ifndef SIM_IO_SIM_DISK_H
#define SIM_IO_SIM_DISK_H

#include "sim/io_sim_node.h"

struct sim_name {
    char *path;
    struct sim_node *node;
};

struct sim_names {
    struct sim_name *entry; /* sorted by path, so a folder comes before its content */
    size_t n, room;
};

struct sim_name_change;

struct sim_disk {
    uint64_t capacity_bytes;
    uint64_t used_sectors; /* sectors that the live nodes take */
    struct sim_names current, durable;
    struct sim_name_change *changes, **changes_tail;
    struct sim_freed *freed; /* borrowed; NULL: bytes of freed sectors are forgotten */
};

/* freed (NULL allowed) outlives the disk and its nodes. */
void sim_disk_init(struct sim_disk *d, uint64_t capacity_bytes, struct sim_freed *freed);
void sim_disk_deinit(struct sim_disk *d); /* Nodes that handles still hold stay alive. */
/* Returns how many files, as they are durable, and how many freed sectors hold these bytes. The
 * bytes of a file are searched as a whole. */
size_t sim_disk_raw_count(const struct sim_disk *d, const void *what, size_t n);

/* Makes the disk after a power failure, chosen by seed, whose freed sectors go to `freed` (NULL
 * allowed). `d` itself is not changed. */
void sim_disk_after_crash(const struct sim_disk *d, uint64_t seed, struct sim_freed *freed,
                          struct sim_disk *out);
/* Returns a digest of all durable names and bytes. */
uint64_t sim_disk_digest(const struct sim_disk *d);

/* Returns a normal absolute path on the heap; NULL if it contains "..". */
char *sim_disk_path(const char *path);

/* ---- Names. Paths are normal; results are 0 or the code of the corresponding system call. */
/* Returns the node of a path; NULL if there is none. */
struct sim_node *sim_disk_find(const struct sim_disk *d, const char *path);
int sim_disk_create(struct sim_disk *d, const char *path, bool is_dir);
int sim_disk_unlink(struct sim_disk *d, const char *path);
/* renames files only */
int sim_disk_rename(struct sim_disk *d, const char *from, const char *to);
int sim_disk_sync_folder(struct sim_disk *d, const char *path);
/* Returns the next name directly in a folder, NULL at the end. *at is 0 before the first call. */
const char *sim_disk_next_name(const struct sim_disk *d, const char *folder, size_t *at);

/* ---- Handles and content. A held node lives on without a name. */
void sim_disk_hold(struct sim_node *n);
void sim_disk_release(struct sim_disk *d, struct sim_node *n);
/* Applies sim_node_change within the capacity. Returns 0, -ENOSPC or -EFBIG. */
int sim_disk_change(struct sim_disk *d, struct sim_node *n, enum sim_change_kind kind,
                    const void *bytes, uint64_t offset, uint64_t length);

#endif
