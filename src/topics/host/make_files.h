/* Whole files, made and synced without the interpreter: each call of it that one thread makes may wait for the others,
 * and a checkpoint of a busy store makes hundreds of files a second.
 *
 * All are written, then all are begun to be brought to the disk, then each is synced. A file system that finds places for
 * bytes when it writes them (ext4) so notes all those places in one go of its journal, and the first sync waits for that
 * on behalf of all. Where no place is found, pages are dropped, and whoever began it may be the only one to hear of that:
 * what the beginning meets is as final as what a sync does.
 *
 * Past the cache the bytes go straight from a buffer of ours to the disk: memory that the system would take for pages
 * that nobody reads soon costs more than the copying. The last bytes of a file, which fill no block, and a file system
 * that knows no such writes take the usual way. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

enum { BLOCK = 4096, STRETCH = 4 * 1024 * 1024 };

struct new_file {
    int at; /* the directory in which `name` counts */
    const char *name;
    const char *data;
    size_t size;
    int fd;
};

/* Bytes from `done` on, until all are written: 0, or what went wrong. */
static int write_rest(const struct new_file *file, size_t done) {
    while (done < file->size) {
        ssize_t written = pwrite(file->fd, file->data + done, file->size - done, (off_t)done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written ? errno : EIO;
        done += (size_t)written;
    }
    return 0;
}

/* How many bytes went past the cache: whole blocks from the front, perhaps none. What is refused here is tried again the
 * usual way, which tells what is wrong. */
static size_t write_past_cache(const struct new_file *file, char *stretch) {
    size_t done = 0;
    while (file->size - done >= BLOCK) {
        size_t some = file->size - done;
        ssize_t written;
        some = some < STRETCH ? some / BLOCK * BLOCK : STRETCH;
        memcpy(stretch, file->data + done, some);
        written = pwrite(file->fd, stretch, some, (off_t)done);
        if (written < BLOCK) break;
        done += (size_t)written / BLOCK * BLOCK;
    }
    return done;
}

static int open_new(const struct new_file *file, int flags) {
    int fd;
    do fd = openat(file->at, file->name, flags | O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int make_one(struct new_file *file, char *stretch) {
    size_t done = 0;
    file->fd = stretch ? open_new(file, O_DIRECT) : -1;
    if (file->fd >= 0) {
        done = write_past_cache(file, stretch);
        if (fcntl(file->fd, F_SETFL, 0) < 0) return errno;
    } else {
        file->fd = open_new(file, 0);
        if (file->fd < 0) return errno;
    }
    return write_rest(file, done);
}

/* 0, or what went wrong. */
static int begin(int fd) {
#ifdef SYNC_FILE_RANGE_WRITE
    while (sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE))
        if (errno != EINTR) /* what cannot be begun apart is done by the sync alone */
            return errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EOPNOTSUPP ? 0 : errno;
#else
    (void)fd;
#endif
    return 0;
}

/* The same. One that a signal broke off is not asked again: nothing is known of what it saw. */
static int sync_one(int fd) {
#ifdef __APPLE__
    return fsync(fd) ? errno : 0;
#else
    return fdatasync(fd) ? errno : 0;
#endif
}

/* 0, or the error of the file at `*failed`. No file is left open. */
static int make_each(struct new_file *files, size_t count, int past_cache, size_t *failed) {
    char *stretch = NULL;
    size_t at, made = 0;
    int error = 0;
    if (past_cache && O_DIRECT && posix_memalign((void **)&stretch, BLOCK, STRETCH)) stretch = NULL;
    for (at = 0; at < count; at++) files[at].fd = -1;
    while (made < count && !(error = make_one(&files[made], stretch))) made++;
    *failed = made;
    for (at = 0; at < count && !error; at++) error = begin(files[*failed = at].fd);
    for (at = 0; at < count && !error; at++) error = sync_one(files[*failed = at].fd);
    for (at = 0; at < count; at++)
        if (files[at].fd >= 0) close(files[at].fd);
    free(stretch);
    return error;
}
