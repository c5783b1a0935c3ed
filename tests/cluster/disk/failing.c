/* A file system that fails in one place: opendir(3) of $FAILS_OPENDIR, open(2) of $FAILS_OPEN and stat(2) of $FAILS_STAT
   with EIO, write(2) and pwrite(2) to what lies below $FAILS_WRITE with EDQUOT, as long as the file $FAILS_WHILE is there,
   or else for ever; and rename(2) to $SLOW_RENAME takes that many ms before ($SLOW_BEFORE_MS) and after ($SLOW_AFTER_MS)
   it has happened. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(const char *variable, const char *path)
{
    const char *place = getenv(variable), *sign = getenv("FAILS_WHILE");
    if (!place || !path || strcmp(place, path) != 0 || (sign && access(sign, F_OK) != 0))
        return 0;
    errno = EIO;
    return 1;
}

DIR *opendir(const char *path)
{
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    return fails("FAILS_OPENDIR", path) ? NULL : real(path);
}

int open64(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return fails("FAILS_OPEN", path) ? -1 : real(path, flags, mode);
}

int stat64(const char *path, struct stat64 *status)
{
    int (*real)(const char *, struct stat64 *) = dlsym(RTLD_NEXT, "stat64");
    return fails("FAILS_STAT", path) ? -1 : real(path, status);
}

int lstat64(const char *path, struct stat64 *status)
{
    int (*real)(const char *, struct stat64 *) = dlsym(RTLD_NEXT, "lstat64");
    return fails("FAILS_STAT", path) ? -1 : real(path, status);
}

static int is_over_quota(int file)
{
    const char *place = getenv("FAILS_WRITE"), *sign = getenv("FAILS_WHILE");
    char link[64], path[PATH_MAX];
    if (!place || (sign && access(sign, F_OK) != 0))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    if (length < (ssize_t)strlen(place) || strncmp(path, place, strlen(place)) != 0)
        return 0;
    errno = EDQUOT;
    return 1;
}

ssize_t write(int file, const void *content, size_t length)
{
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return is_over_quota(file) ? -1 : real(file, content, length);
}

ssize_t pwrite64(int file, const void *content, size_t length, off64_t at)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return is_over_quota(file) ? -1 : real(file, content, length, at);
}

static void wait_for(const char *variable)
{
    const char *ms = getenv(variable);
    if (ms)
        usleep(1000 * (useconds_t)atoi(ms));
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    const char *slow = getenv("SLOW_RENAME");
    if (!slow || strcmp(slow, to) != 0)
        return real(from, to);
    wait_for("SLOW_BEFORE_MS");
    int done = real(from, to);
    wait_for("SLOW_AFTER_MS");
    return done;
}
