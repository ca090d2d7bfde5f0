/* The paths of what calls write to, and whether they count. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "shim.h"

static char root[PATH_MAX];

void set_root(const char *folder) { snprintf(root, sizeof root, "%s", folder); }


/* Whether a path is that of the folder whose calls count, or below it. */
int below(const char *path)
{
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

/* The path of an open file. */
int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

/* The path of a name in an open folder, or in the current one. */
int absolute(int folder, const char *name, char *path)
{
    char base[PATH_MAX];
    if (name[0] == '/')
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(folder, base))
        return 0;
    return snprintf(path, PATH_MAX, "%s/%s", base, name) < PATH_MAX;
}
