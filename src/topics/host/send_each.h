/* One piece of bytes to many sockets, by the thread that calls and a helper beside it.
 *
 * Both take the next socket from one counter: neither waits for the other before the last one has been sent to, and a
 * helper that gets no processor is not waited for at all. A call returns when both are done, so nothing is sent, and no
 * file or byte of the caller is looked at, behind its back. Callers come one at a time: they hold the interpreter. */
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { TOGETHER_MIN = 24, TOGETHER_MAX = 1024 }; /* a helper comes too late for fewer */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t called, left;
    unsigned round;
    int hired; /* 1 = there is a helper, -1 = there can be none */
    int busy;  /* the helper has joined in */
    const int *files;
    const char *data;
    size_t size;
    size_t next, end;
    ssize_t taken[TOGETHER_MAX];
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static ssize_t send_one(int file, const char *data, size_t size) {
    ssize_t sent = send(file, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : sent;
}

static void send_some(void) {
    size_t at;
    while ((at = __atomic_fetch_add(&shared.next, 1, __ATOMIC_RELAXED)) < shared.end)
        shared.taken[at] = send_one(shared.files[at], shared.data, shared.size);
}

static void *help(void *nothing) {
    unsigned seen = 0;
    pthread_mutex_lock(&shared.lock);
    for (;;) {
        while (shared.round == seen) pthread_cond_wait(&shared.called, &shared.lock);
        seen = shared.round;
        if (__atomic_load_n(&shared.next, __ATOMIC_RELAXED) >= shared.end) continue;
        shared.busy = 1;
        pthread_mutex_unlock(&shared.lock);
        send_some();
        pthread_mutex_lock(&shared.lock);
        shared.busy = 0;
        pthread_cond_signal(&shared.left);
    }
    return nothing;
}

/* The threads of a process are not those of its child, and the lock may have been held by one. */
static void begin_anew(void) {
    pthread_mutex_init(&shared.lock, NULL);
    pthread_cond_init(&shared.called, NULL);
    pthread_cond_init(&shared.left, NULL);
    shared.hired = shared.busy = 0;
}

/* Signals are for the threads that know of them. */
static void hire(void) {
    static int prepared;
    sigset_t all, before;
    pthread_t thread;
    if (!prepared) prepared = !pthread_atfork(NULL, NULL, begin_anew);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    shared.hired = prepared && !pthread_create(&thread, NULL, help, NULL) ? 1 : -1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (shared.hired > 0) pthread_detach(thread);
}

/* How much each of them took. At most TOGETHER_MAX of them; `helped` where there is a processor for a helper. */
static const ssize_t *send_to_each(const int *files, size_t count, const char *data, size_t size, int helped) {
    helped = helped && count >= TOGETHER_MIN;
    if (helped && !shared.hired) hire();
    helped = helped && shared.hired > 0;
    pthread_mutex_lock(&shared.lock);
    shared.files = files;
    shared.data = data;
    shared.size = size;
    shared.next = 0;
    shared.end = count;
    if (helped) shared.round++;
    pthread_mutex_unlock(&shared.lock);
    if (helped) pthread_cond_signal(&shared.called);
    send_some();
    pthread_mutex_lock(&shared.lock);
    while (shared.busy) pthread_cond_wait(&shared.left, &shared.lock);
    shared.end = 0; /* a helper that comes only now finds nothing to do */
    pthread_mutex_unlock(&shared.lock);
    return shared.taken;
}
