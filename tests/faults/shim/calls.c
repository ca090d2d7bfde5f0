/* Counts the calls of a process that write below a folder, and kills it or fails at the N-th of them.
 *
 * Loaded by LD_PRELOAD; does nothing until `fault_arm` is called. */
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
#include "shim.h"

enum { COUNT, KILL, KILL_HALF, FAIL_ONCE, FAIL_ON, SHORT, TERM };

/* A call that moves bytes can do half of them; one that takes space can fail on a full disk. */
enum { MOVES = 1, TAKES = 2 };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int armed, mode, error;
static long at, count;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* folder: that the calls are below, an absolute path. number: of the call, from 1. how: a mode. problem: an errno. */
void fault_arm(const char *folder, long number, int how, int problem, int file)
{
    set_root(folder);
    at = number, mode = how, error = problem, count = 0;
    begin_report(file);
    armed = 1;
}

/* At the end of a command: nothing is counted any more, and the report is written. */
void fault_report(void)
{
    armed = 0;
    write_report();
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
    if (mode == TERM)
        kill(getpid(), SIGTERM);
    if ((mode == FAIL_ONCE || mode == FAIL_ON) && (error != ENOSPC || flags & TAKES)) {
        errno = error;
        return -1;
    }
    return 0;
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
    CALL("fsync", TAKES, path_of(fd, path_), real(fd), forget_all());
}
