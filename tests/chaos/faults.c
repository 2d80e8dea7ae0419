/* Lets calls of a program fail, or come late, as a file says; and lets its wall clock jump. For LD_PRELOAD.
 *
 * FAULTS names the file: a line is CALL ERRNO MILLISECONDS PATH, where CALL is stat, open, read, list or watch, ERRNO is 0 for none, and PATH
 * is a part of the path; a line "clock 0 MILLISECONDS -" moves the wall clock. The file is read at each call: what a test writes holds at once.
 */
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
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int script(char *text, int size) {
    const char *name = getenv("FAULTS");
    int fd = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
    long got = fd < 0 ? 0 : syscall(SYS_read, fd, text, size - 1);
    if (fd >= 0)
        syscall(SYS_close, fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* The errno with which this call has to fail, 0 for none; waits as long as it is to be late. */
static int fault(const char *call, const char *path) {
    char text[4096], word[16], part[512];
    int error, at = 0, used;
    long late;
    if (!path || !script(text, sizeof text))
        return 0;
    while (sscanf(text + at, "%15s %d %ld %511s%n", word, &error, &late, part, &used) == 4) {
        at += used;
        if (strcmp(word, call) || !strstr(path, part))
            continue;
        struct timespec pause = {late / 1000, late % 1000 * 1000000};
        syscall(SYS_nanosleep, &pause, 0);
        return error;
    }
    return 0;
}

static int fault_of(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long got = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[got > 0 ? got : 0] = 0;
    return fault(call, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OR_FAIL(error, failed) do { int said = (error); if (said) { errno = said; return failed; } } while (0)

int stat(const char *path, struct stat *seen) { OR_FAIL(fault("stat", path), -1); return NEXT(stat)(path, seen); }
int stat64(const char *path, struct stat64 *seen) { OR_FAIL(fault("stat", path), -1); return NEXT(stat64)(path, seen); }
ssize_t pread(int fd, void *to, size_t size, off_t at) { OR_FAIL(fault_of("read", fd), -1); return NEXT(pread)(fd, to, size, at); }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) { OR_FAIL(fault_of("read", fd), -1); return NEXT(pread64)(fd, to, size, at); }
DIR *opendir(const char *path) { OR_FAIL(fault("list", path), NULL); return NEXT(opendir)(path); }

static int mode_of(int flags, va_list rest) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0; }

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = mode_of(flags, rest);
    va_end(rest);
    OR_FAIL(fault("open", path), -1);
    return NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = mode_of(flags, rest);
    va_end(rest);
    OR_FAIL(fault("open", path), -1);
    return NEXT(open64)(path, flags, mode);
}

int inotify_add_watch(int fd, const char *path, unsigned int mask) {
    OR_FAIL(fault("watch", path), -1);
    return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    char text[4096], *line;
    long result = syscall(SYS_clock_gettime, clock, now), moved = 0;
    if (clock == CLOCK_REALTIME && script(text, sizeof text) && (line = strstr(text, "clock 0 ")) && sscanf(line, "clock 0 %ld", &moved) == 1)
        now->tv_sec += moved / 1000;
    return (int)result;
}
