/* Loaded in front of the system's library: notes the calls that make files, and lets one of them fail.
 *
 * WATCHED_LOG is the file that is noted into, WATCHED_FAIL "name:n:errno" fails the n-th call of that name. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static FILE *notes;

static int fails(const char *name, int *error) {
    static struct { const char *name; int count; } seen[16];
    const char *plan = getenv("WATCHED_FAIL");
    char wanted[32];
    int at = 0, number;
    while (seen[at].name && strcmp(seen[at].name, name)) at++;
    seen[at].name = name;
    seen[at].count++;
    return plan && sscanf(plan, "%31[a-z_]:%d:%d", wanted, &number, error) == 3 && !strcmp(wanted, name) &&
           seen[at].count == number;
}

static int note(const char *name, int fd, long size, const char *path) {
    int error = 0, failed;
    const char *log = getenv("WATCHED_LOG");
    if (!log) return 0;
    failed = fails(name, &error);
    if (!notes) notes = fopen(log, "w");
    fprintf(notes, "%s %d %ld %s %d\n", name, fd, size, path && *path ? path : "-", failed ? error : 0);
    fflush(notes);
    if (failed) errno = error;
    return failed;
}

#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, #name)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        typedef int (*call)(int, const char *, int, ...); \
        REAL(name, call); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int), fd; \
        va_end(rest); \
        if (note(flags & 040000 ? "open_direct" : "open", -1, 0, path)) return -1; \
        fd = real(at, path, flags, mode); \
        note("opened", fd, 0, path); \
        return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t offset) { \
        typedef ssize_t (*call)(int, const void *, size_t, off_t); \
        REAL(name, call); \
        if (note("write", fd, (long)size, NULL)) return -1; \
        return real(fd, data, size, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

int fdatasync(int fd) {
    typedef int (*call)(int);
    REAL(fdatasync, call);
    return note("sync", fd, 0, NULL) ? -1 : real(fd);
}

int sync_file_range(int fd, off_t offset, off_t size, unsigned flags) {
    typedef int (*call)(int, off_t, off_t, unsigned);
    REAL(sync_file_range, call);
    return note("begin", fd, 0, NULL) ? -1 : real(fd, offset, size, flags);
}

int close(int fd) {
    typedef int (*call)(int);
    REAL(close, call);
    note("close", fd, 0, NULL);
    return real(fd);
}
