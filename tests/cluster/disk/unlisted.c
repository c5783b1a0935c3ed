/* A file system that does not list one folder: opendir(3) of $UNLISTED fails with EIO. Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

DIR *opendir(const char *name)
{
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    const char *unlisted = getenv("UNLISTED");
    if (unlisted && strcmp(name, unlisted) == 0) {
        errno = EIO;
        return NULL;
    }
    return real(name);
}
