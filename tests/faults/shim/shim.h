/* What the parts of the shim know of each other. */
#include <sys/stat.h>
#include <sys/types.h>

void set_root(const char *folder);
int below(const char *path);
int path_of(int fd, char *path);
int absolute(int folder, const char *name, char *path);

void begin_report(int file);
void write_report(void);
void say(const char *text);

void grows(int fd);
void written(int fd, off_t start, off_t length);
void resized(int fd);
void named(const char *path);
void durable(const struct stat *status);
void forget_all(void);
