/* Counts the calls of a process that write below a folder, and kills it or fails at the N-th of them.
 *
 * Loaded by LD_PRELOAD; does nothing until `fault_arm` is called. It also keeps which bytes were written and not made
 * durable by fsync, for the model of lost power: `fault_report` and a kill write them to a file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <linux/fs.h>

enum { COUNT, KILL, KILL_HALF, FAIL_ONCE, FAIL_ON, SHORT };

/* A call that moves bytes can do half of them; one that takes space can fail on a full disk. */
enum { MOVES = 1, TAKES = 2 };

struct range { dev_t dev; ino_t ino; off_t start, end; };
struct entry { dev_t dev; ino_t ino; off_t size; int folder; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int armed, mode, error, report = -1;
static long at, count;
static char root[PATH_MAX];
static struct range *ranges;
static struct entry *entries;
static size_t range_count, entry_count;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void say(const char *text) { syscall(SYS_write, report, text, strlen(text)); }

void fault_report(void)
{
    char line[128];
    armed = 0;
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

/* folder: that the calls are below, an absolute path. number: of the call, from 1. how: a mode. problem: an errno. */
void fault_arm(const char *folder, long number, int how, int problem, int file)
{
    snprintf(root, sizeof root, "%s", folder);
    at = number, mode = how, error = problem, report = file;
    count = 0, range_count = entry_count = 0, armed = 1;
}

static int below(const char *path)
{
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

static int absolute(int folder, const char *name, char *path)
{
    char base[PATH_MAX];
    if (name[0] == '/')
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(folder, base))
        return 0;
    return snprintf(path, PATH_MAX, "%s/%s", base, name) < PATH_MAX;
}

static void die(void)
{
    fault_report();
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* What is to be done with a call: 0 carry it out, 1 with half of the bytes, 2 the same and die, -1 fail. */
static int decide(const char *kind, int flags, const char *path)
{
    count++;
    if (mode == COUNT) {
        char line[PATH_MAX + 64];
        snprintf(line, sizeof line, "call %s %d %s\n", kind, flags, path);
        say(line);
    }
    if (mode == SHORT)
        return flags & MOVES ? 1 : 0;
    if (mode == FAIL_ON ? count < at : count != at)
        return 0;
    if (mode == KILL)
        die();
    if (mode == KILL_HALF)
        return 2;
    if ((mode == FAIL_ONCE || mode == FAIL_ON) && (error != ENOSPC || flags & TAKES)) {
        errno = error;
        return -1;
    }
    return 0;
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
static void grows(int fd)
{
    struct stat status;
    if (!fstat(fd, &status))
        entry_of(&status, 1);
}

/* Bytes that a file has, and that are not on the disk yet. */
static void written(int fd, off_t start, off_t length)
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

static void durable(const struct stat *status)
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
static void named(const char *path)
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
static void resized(int fd)
{
    struct stat status;
    struct entry *entry;
    if (!fstat(fd, &status) && (entry = entry_of(&status, 0)))
        entry->size = status.st_size;
}

#define ENTER pthread_mutex_lock(&lock)
#define LEAVE(value) do { __typeof__(value) result_ = (value); int kept_ = errno; pthread_mutex_unlock(&lock); \
    errno = kept_; return result_; } while (0)

#define MOVE(kind, fd, position, type, whole, half) \
    char path_[PATH_MAX]; \
    ENTER; \
    if (!armed || !path_of(fd, path_) || !below(path_)) \
        LEAVE(whole); \
    int what_ = decide(kind, MOVES | TAKES, path_); \
    if (what_ < 0) \
        LEAVE((type)-1); \
    off_t from_ = position; \
    grows(fd); \
    type done_ = what_ ? half : whole; \
    written(fd, from_, done_); \
    if (what_ == 2) \
        die(); \
    LEAVE(done_)

static off_t here(int fd)
{
    return fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

static size_t half_of(size_t length) { return length > 1 ? length / 2 : length; }

ssize_t write(int fd, const void *data, size_t length)
{
    __typeof__(&write) real = REAL(write);
    if (!armed)
        return real(fd, data, length);
    MOVE("write", fd, here(fd), ssize_t, real(fd, data, length), real(fd, data, half_of(length)));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t place)
{
    __typeof__(&pwrite) real = REAL(pwrite);
    if (!armed)
        return real(fd, data, length, place);
    MOVE("pwrite", fd, place, ssize_t, real(fd, data, length, place), real(fd, data, half_of(length), place));
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t place) { return pwrite(fd, data, length, place); }

static ssize_t half_vector(int fd, const struct iovec *parts, off_t place)
{
    __typeof__(&pwrite) real = REAL(pwrite);
    ssize_t done = real(fd, parts[0].iov_base, half_of(parts[0].iov_len), place);
    if (done > 0)
        lseek(fd, place + done, SEEK_SET);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int number)
{
    __typeof__(&writev) real = REAL(writev);
    if (!armed)
        return real(fd, parts, number);
    MOVE("writev", fd, here(fd), ssize_t, real(fd, parts, number), half_vector(fd, parts, from_));
}

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t length, unsigned flags)
{
    __typeof__(&copy_file_range) real = REAL(copy_file_range);
    if (!armed)
        return real(in, from, out, to, length, flags);
    MOVE("copy_file_range", out, to ? *to : here(out), ssize_t, real(in, from, out, to, length, flags),
         real(in, from, out, to, half_of(length), flags));
}

ssize_t sendfile(int out, int in, off_t *from, size_t length)
{
    __typeof__(ssize_t (*)(int, int, off_t *, size_t)) real = dlsym(RTLD_NEXT, "sendfile");
    if (!armed)
        return real(out, in, from, length);
    MOVE("sendfile", out, here(out), ssize_t, real(out, in, from, length), real(out, in, from, half_of(length)));
}
ssize_t sendfile64(int out, int in, off_t *from, size_t length) { return sendfile(out, in, from, length); }

/* Calls that have no half: `after` runs where they succeeded. */
#define CALL(kind, flags, known, call, after) \
    char path_[PATH_MAX]; \
    ENTER; \
    if (!armed || !(known) || !below(path_)) \
        LEAVE(call); \
    int what_ = decide(kind, flags, path_); \
    if (what_ < 0) \
        LEAVE(-1); \
    int done_ = call; \
    if (done_ >= 0) { \
        int kept_errno_ = errno; \
        after; \
        errno = kept_errno_; \
    } \
    if (what_ == 2) \
        die(); \
    LEAVE(done_)

static int opened(int folder, const char *name, int flags, mode_t permissions)
{
    __typeof__(&openat) real = REAL(openat);
    int writes = (flags & O_TRUNC) || ((flags & O_CREAT) && faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW));
    if (!armed || !writes)
        return real(folder, name, flags, permissions);
    CALL("open", TAKES, absolute(folder, name, path_), real(folder, name, flags, permissions),
         { named(path_); grows(done_); resized(done_); });
}

#define PERMISSIONS(last) mode_t permissions = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list list; \
    va_start(list, last); permissions = va_arg(list, mode_t); va_end(list); }

int open(const char *name, int flags, ...) { PERMISSIONS(flags); return opened(AT_FDCWD, name, flags, permissions); }
int open64(const char *name, int flags, ...) { PERMISSIONS(flags); return opened(AT_FDCWD, name, flags, permissions); }
int openat(int folder, const char *name, int flags, ...)
{ PERMISSIONS(flags); return opened(folder, name, flags, permissions); }
int openat64(int folder, const char *name, int flags, ...)
{ PERMISSIONS(flags); return opened(folder, name, flags, permissions); }
int creat(const char *name, mode_t permissions)
{ return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, permissions); }
int creat64(const char *name, mode_t permissions) { return creat(name, permissions); }

int renameat2(int a, const char *old, int b, const char *new, unsigned flags)
{
    __typeof__(&renameat2) real = REAL(renameat2);
    char other_[PATH_MAX];
    if (!armed || !absolute(a, old, other_))
        return real(a, old, b, new, flags);
    CALL("rename", 0, absolute(b, new, path_), real(a, old, b, new, flags), { named(path_); named(other_); });
}
int renameat(int a, const char *old, int b, const char *new) { return renameat2(a, old, b, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *name, int flags)
{
    __typeof__(&unlinkat) real = REAL(unlinkat);
    CALL(flags & AT_REMOVEDIR ? "rmdir" : "unlink", 0, absolute(folder, name, path_), real(folder, name, flags),
         named(path_));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t permissions)
{
    __typeof__(&mkdirat) real = REAL(mkdirat);
    CALL("mkdir", TAKES, absolute(folder, name, path_), real(folder, name, permissions), named(path_));
}
int mkdir(const char *name, mode_t permissions) { return mkdirat(AT_FDCWD, name, permissions); }

int linkat(int a, const char *old, int b, const char *new, int flags)
{
    __typeof__(&linkat) real = REAL(linkat);
    CALL("link", TAKES, absolute(b, new, path_), real(a, old, b, new, flags), named(path_));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *goal, int folder, const char *name)
{
    __typeof__(&symlinkat) real = REAL(symlinkat);
    CALL("symlink", TAKES, absolute(folder, name, path_), real(goal, folder, name), named(path_));
}
int symlink(const char *goal, const char *name) { return symlinkat(goal, AT_FDCWD, name); }

int ftruncate(int fd, off_t length)
{
    __typeof__(&ftruncate) real = REAL(ftruncate);
    CALL("ftruncate", 0, path_of(fd, path_), real(fd, length), { grows(fd); resized(fd); });
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

int truncate(const char *name, off_t length)
{
    __typeof__(&truncate) real = REAL(truncate);
    CALL("truncate", 0, absolute(AT_FDCWD, name, path_), real(name, length), {});
}
int truncate64(const char *name, off_t length) { return truncate(name, length); }

int fallocate(int fd, int how, off_t start, off_t length)
{
    __typeof__(&fallocate) real = REAL(fallocate);
    CALL("fallocate", TAKES, path_of(fd, path_), real(fd, how, start, length), { grows(fd); resized(fd); });
}
int fallocate64(int fd, int how, off_t start, off_t length) { return fallocate(fd, how, start, length); }
int posix_fallocate(int fd, off_t start, off_t length) { return fallocate(fd, 0, start, length) ? errno : 0; }
int posix_fallocate64(int fd, off_t start, off_t length) { return posix_fallocate(fd, start, length); }

int ioctl(int fd, unsigned long request, ...)
{
    __typeof__(int (*)(int, unsigned long, void *)) real = dlsym(RTLD_NEXT, "ioctl");
    va_list list;
    va_start(list, request);
    void *value = va_arg(list, void *);
    va_end(list);
    if (!armed || (request != FICLONE && request != FICLONERANGE))
        return real(fd, request, value);
    CALL("clone", TAKES, path_of(fd, path_), real(fd, request, value), { grows(fd); written(fd, 0, lseek(fd, 0, SEEK_END)); });
}

static int synced(int fd, int (*real)(int))
{
    struct stat status;
    CALL("fsync", TAKES, path_of(fd, path_), real(fd), if (!fstat(fd, &status)) durable(&status));
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }
int syncfs(int fd)
{
    __typeof__(&syncfs) real = REAL(syncfs);
    CALL("fsync", TAKES, path_of(fd, path_), real(fd), range_count = entry_count = 0);
}
