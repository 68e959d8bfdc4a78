/* What `writing_back.py` asks of the system before a sync: one call whose outcome nothing can come between. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* 0, or what went wrong. One that a signal broke off is not asked again: nothing is known of what it saw. */
static int write_back_all(int fd) {
#ifdef SYNC_FILE_RANGE_WRITE
    /* Wait for pages that are on their way, send the others, wait for those too. */
    if (!sync_file_range(fd, 0, 0,
                         SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
        return 0;
    if (errno != ENOSYS) return errno;
#endif
#ifdef __APPLE__
    return fsync(fd) ? errno : 0;
#else
    return fdatasync(fd) ? errno : 0;
#endif
}
