/* io_medium.c - whether writing over a file's bytes reaches the blocks that hold them. See
 * io_erase.h.
 *
 * It reads statfs, /proc/self/mountinfo and /sys/dev/block. What these do not tell stays unknown:
 * flash behind a disk's own translation, an image file or a volume of another machine, a backup. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "io/io_erase.h"
#include "io/io_posix.h"

/* File systems that write a block anew instead of over the old one. Their numbers are part of
 * Linux's interface. */
static const struct {
    unsigned long magic;
    const char *why;
} elsewhere[] = {
    {0x9123683e, "btrfs copies on write"},
    {0x2fc12fc1, "zfs copies on write"},
    {0xca451a4e, "bcachefs copies on write"},
    {0xf2f52010, "f2fs writes a log"},
    {0x3434, "nilfs2 writes a log"},
    {0x794c7630, "overlay may keep an older copy in a lower layer"},
    {0x65735546, "what lies behind a FUSE file system is unknown"},
    {0x6969, "the disk of an NFS server is unknown"},
    {0xfe534d42, "the disk of an SMB server is unknown"},
    {0xff534d42, "the disk of an SMB server is unknown"},
    {0x01021997, "the file system behind 9p is unknown"},
};

static const char *by_file_system(const char *path)
{
    struct statfs s;
    if (statfs(path, &s) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (((unsigned long)s.f_type & 0xffffffff) == elsewhere[i].magic)
            return elsewhere[i].why;
    return NULL;
}

/* Returns whether the file system of this device was mounted with data=journal. */
static bool journals_data(dev_t device)
{
    char line[4096], want[32];
    bool found = false;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (f == NULL)
        return false;
    snprintf(want, sizeof want, " %u:%u ", major(device), minor(device));
    while (!found && fgets(line, sizeof line, f) != NULL)
        found = strstr(line, want) != NULL && strstr(line, "data=journal") != NULL;
    fclose(f);
    return found;
}

/* Reads the first line of a file under /sys. Returns false if there is none. */
static bool read_line(const char *path, char *out, int n)
{
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && fgets(out, n, f) != NULL;
    if (f != NULL)
        fclose(f);
    out[ok ? strcspn(out, "\n") : 0] = 0;
    return ok;
}

/* Returns the reason if the device is a volume that keeps older blocks. A volume with snapshots
 * stands above a device named "..-real", a snapshot above one named "..-cow", and a thin volume above
 * its pool. */
static const char *by_volume(dev_t device)
{
    char path[400], name[256];
    const char *why = NULL;
    struct io_names below = {0};
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/slaves", major(device),
             minor(device));
    if (io_posix_ops.list(NULL, path, &below) != 0)
        below.n = 0;
    for (size_t i = 0; i < below.n && why == NULL; i++) {
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/slaves/%.64s/dm/name",
                 major(device), minor(device), below.name[i]);
        if (!read_line(path, name, sizeof name))
            continue;
        const char *dash = strrchr(name, '-'), *end = dash != NULL ? dash : name;
        if (strcmp(end, "-real") == 0 || strcmp(end, "-cow") == 0)
            why = "the volume has a snapshot, which keeps the old blocks";
        else if (strcmp(end, "-tpool") == 0)
            why = "the volume is thin: a snapshot of it keeps the old blocks";
    }
    io_names_free(&below);
    return why;
}

bool io_medium_posix(const char *path, char *why, size_t n)
{
    struct stat st;
    const char *reason = by_file_system(path);
    if (reason == NULL && stat(path, &st) == 0) {
        if (journals_data(st.st_dev))
            reason = "the file system keeps data in its journal (data=journal)";
        else
            reason = by_volume(st.st_dev);
    }
    snprintf(why, n, "%s", reason != NULL ? reason : "");
    return reason == NULL;
}

bool io_posix_is_shared(int fd)
{
    enum { EXTENTS = 64 };
    _Alignas(struct fiemap)
        uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
    struct fiemap *map = (struct fiemap *)room;
    uint64_t at = 0;
    for (bool last = false; !last;) {
        memset(room, 0, sizeof room);
        map->fm_start = at;
        map->fm_length = UINT64_MAX - at;
        map->fm_extent_count = EXTENTS;
        if (ioctl(fd, FS_IOC_FIEMAP, map) != 0 || map->fm_mapped_extents == 0)
            return false;
        for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
            const struct fiemap_extent *e = &map->fm_extents[i];
            if ((e->fe_flags & FIEMAP_EXTENT_SHARED) != 0)
                return true;
            last = (e->fe_flags & FIEMAP_EXTENT_LAST) != 0;
            at = e->fe_logical + e->fe_length;
        }
    }
    return false;
}
