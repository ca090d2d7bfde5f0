/* Which bytes and names a process has written and not made durable by fsync, for the model of lost power. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "shim.h"

struct range { dev_t dev; ino_t ino; off_t start, end; };
struct entry { dev_t dev; ino_t ino; off_t size; int folder; };

static int report = -1;
static struct range *ranges;
static struct entry *entries;
static size_t range_count, entry_count;

void say(const char *text) { syscall(SYS_write, report, text, strlen(text)); }

/* file: that the report is written to. */
void begin_report(int file)
{
    report = file;
    forget_all();
}

void forget_all(void) { range_count = entry_count = 0; }

void write_report(void)
{
    char line[128];
    for (size_t i = 0; i < range_count; i++) {
        struct range *r = &ranges[i];
        snprintf(line, sizeof line, "range %lu %lu %ld %ld\n", (long)r->dev, (long)r->ino, (long)r->start, (long)r->end);
        say(line);
    }
    for (size_t i = 0; i < entry_count; i++) {
        struct entry *e = &entries[i];
        snprintf(line, sizeof line, "%s %lu %lu %ld\n", e->folder ? "folder" : "file", (long)e->dev, (long)e->ino,
                 (long)e->size);
        say(line);
    }
}

static struct entry *entry_of(const struct stat *status, int add)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].dev == status->st_dev && entries[i].ino == status->st_ino)
            return &entries[i];
    if (!add)
        return NULL;
    if (entry_count % 1024 == 0)
        entries = realloc(entries, (entry_count + 1024) * sizeof *entries);
    entries[entry_count] = (struct entry){status->st_dev, status->st_ino, status->st_size, S_ISDIR(status->st_mode)};
    return &entries[entry_count++];
}

/* Before a call that may grow a file: the size that it has on the disk is the one of now. */
void grows(int fd)
{
    struct stat status;
    if (!fstat(fd, &status))
        entry_of(&status, 1);
}

/* Bytes that a file has, and that are not on the disk yet. */
void written(int fd, off_t start, off_t length)
{
    struct stat status;
    if (length <= 0 || fstat(fd, &status))
        return;
    if (range_count) {
        struct range *last = &ranges[range_count - 1];
        if (last->dev == status.st_dev && last->ino == status.st_ino && last->end == start) {
            last->end += length;
            return;
        }
    }
    if (range_count % 1024 == 0)
        ranges = realloc(ranges, (range_count + 1024) * sizeof *ranges);
    ranges[range_count++] = (struct range){status.st_dev, status.st_ino, start, start + length};
}

void durable(const struct stat *status)
{
    size_t kept = 0;
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i].dev != status->st_dev || ranges[i].ino != status->st_ino)
            ranges[kept++] = ranges[i];
    range_count = kept;
    struct entry *entry = entry_of(status, 0);
    if (entry)
        *entry = entries[--entry_count];
}

/* A name in the folder of `path` was made, changed or removed. */
void named(const char *path)
{
    char folder[PATH_MAX];
    struct stat status;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash > folder)
        *slash = 0;
    if (below(folder) && !stat(folder, &status))
        entry_of(&status, 1);
}

/* The size of a file that a call has set: sizes are kept by the journal of the filesystem, in the order of the calls. */
void resized(int fd)
{
    struct stat status;
    struct entry *entry;
    if (!fstat(fd, &status) && (entry = entry_of(&status, 0)))
        entry->size = status.st_size;
}
