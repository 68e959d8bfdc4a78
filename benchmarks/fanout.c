/* One writer, many watchers, one clock: how long from the write to each delivery.
 *
 *     fanout PORT WATCHERS RATE SECONDS WRITERS HELLO READY REQUEST ACK [AGAIN]
 *
 * HELLO holds what each watcher sends first, each after its length (u32, little endian); it is ready when READY has come
 * (`-`: at once). REQUEST is one write, with `@000000000@` where its number goes; a copy of that number in what a watcher
 * reads is its delivery. ACK is what the answer to a write holds. AGAIN is what a watcher sends after each delivery
 * (a blocking read). RATE writes a second are sent by one writer; 0 = as fast as WRITERS in a closed loop can.
 * A line `HELLO ok` for a peer that pings: `PING` is answered by `PONG`. It prints `going` when all watchers are ready
 * and half a second has passed, and JSON at the end, times in us.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MARK 11
#define WRITES_MAX (1 << 21)
#define SAMPLES_MAX (1 << 24)

typedef struct {
    int fd, writer, ready, busy;
    char carry[64];
    int have;
    int64_t began;
    char *request;
} Conn;

static char *again, *ack, *ready_token;
static size_t again_size, request_size, mark_at;
static int64_t sent_at[WRITES_MAX];
static uint32_t *deliveries, *acks;
static size_t delivered, acked, sent, watchers_ready;
static int64_t stop_at;
static int rate;
static char *request;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *why) {
    fprintf(stderr, "fanout: %s: %s\n", why, strerror(errno));
    exit(1);
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (fread(data, 1, *size, file) != *size) die(path);
    data[*size] = 0;
    fclose(file);
    return data;
}

static void send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { usleep(50); continue; }
        if (n <= 0) die("send");
        data += n;
        size -= (size_t)n;
    }
}

static int dial(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void write_one(Conn *c) {
    if (sent >= WRITES_MAX) return;
    char digits[10];
    snprintf(digits, sizeof digits, "%09zu", sent);
    memcpy(c->request + mark_at + 1, digits, 9);
    c->busy = 1;
    c->began = sent_at[sent++] = now_ns();
    send_all(c->fd, c->request, request_size);
}

static void answered(Conn *c, int64_t now) {
    c->busy = 0;
    if (acked < SAMPLES_MAX) acks[acked++] = (uint32_t)((now - c->began) / 1000);
    if (!rate && now < stop_at) write_one(c);
}

static void got(Conn *c, char *data, size_t size, int64_t now) {
    char *at = data, *end = data + size;
    if (c->writer) {
        if (c->busy && memmem(data, size, ack, strlen(ack))) answered(c, now);
        else if (memmem(data, size, "PING\r\n", 6)) send_all(c->fd, "PONG\r\n", 6);
        return;
    }
    if (!c->ready) {
        if (!memmem(data, size, ready_token, strlen(ready_token))) return;
        c->ready = 1;
        watchers_ready++;
        return;
    }
    while ((at = memchr(at, '@', (size_t)(end - at)))) {
        if (end - at < MARK) break;
        if (at[MARK - 1] != '@') { at++; continue; }
        size_t number = strtoul(at + 1, NULL, 10);
        if (number < sent && delivered < SAMPLES_MAX) deliveries[delivered++] = (uint32_t)((now - sent_at[number]) / 1000);
        at += MARK;
        if (again) send_all(c->fd, again, again_size);
    }
    if (!at && memmem(data, size, "PING\r\n", 6)) send_all(c->fd, "PONG\r\n", 6);
    c->have = 0;
    if (at) {
        c->have = (int)(end - at);
        memcpy(c->carry, at, (size_t)c->have);
    }
}

static int smaller(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t part(uint32_t *values, size_t count, double share) {
    return count ? values[(size_t)((double)(count - 1) * share)] : 0;
}

int main(int argc, char **argv) {
    if (argc < 10) return fprintf(stderr, "see the head of fanout.c\n"), 2;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int port = atoi(argv[1]), watchers = atoi(argv[2]), writers = atoi(argv[5]);
    rate = atoi(argv[3]);
    double seconds = atof(argv[4]);
    size_t hello_size;
    char *hello = read_file(argv[6], &hello_size);
    ready_token = argv[7];
    request = read_file(argv[8], &request_size);
    ack = argv[9];
    if (argc > 10) again = read_file(argv[10], &again_size);
    char *mark = memmem(request, request_size, "@000000000@", MARK);
    if (!mark) die("no mark in the request");
    mark_at = (size_t)(mark - request);
    deliveries = malloc(SAMPLES_MAX * sizeof *deliveries);
    acks = malloc(SAMPLES_MAX * sizeof *acks);

    int epoll_fd = epoll_create1(0);
    Conn *conns = calloc((size_t)(watchers + writers), sizeof *conns);
    size_t at = 0;
    for (int i = 0; i < watchers + writers; i++) {
        Conn *c = conns + i;
        c->fd = dial(port);
        c->writer = i >= watchers;
        if (at + 4 <= hello_size) {
            uint32_t length;
            memcpy(&length, hello + at, 4);
            send_all(c->fd, hello + at + 4, length);
            at += 4 + length;
        }
        if (c->writer) {
            c->request = malloc(request_size);
            memcpy(c->request, request, request_size);
        } else if (!strcmp(ready_token, "-")) {
            c->ready = 1;
            watchers_ready++;
        }
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
    }
    static char buffer[1 << 16];
    struct epoll_event events[256];
    int64_t began = now_ns(), settle = 0, next = 0, first = 0;
    stop_at = INT64_MAX;
    size_t wanted = rate ? (size_t)(rate * seconds) : 0;
    int going = 0;
    for (;;) {
        int64_t now = now_ns();
        if (!going && watchers_ready == (size_t)watchers) {
            if (!settle) settle = now + 500000000;
            if (now >= settle) {
                going = 1;
                puts("going");
                fflush(stdout);
                next = first = now;
                stop_at = now + (int64_t)(seconds * 1e9);
                if (!rate) for (int i = 0; i < writers; i++) write_one(conns + watchers + i);
            }
        }
        if (!going && now - began > 30000000000) die("watchers did not get ready");
        if (going && rate && sent < wanted && now >= next && !conns[watchers].busy) {
            write_one(conns + watchers);
            next += 1000000000 / rate;
        }
        if (going && rate && sent == wanted && (delivered >= wanted * (size_t)watchers || now > sent_at[sent - 1] + 5000000000)) break;
        if (going && !rate && now > stop_at + 200000000) break;
        int64_t wait = 10000000;
        if (going && rate && sent < wanted && next > now) wait = next - now < wait ? next - now : wait;
        struct timespec pause = {.tv_nsec = wait};
        int n = epoll_pwait2(epoll_fd, events, 256, &pause, NULL);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (c->have) memcpy(buffer, c->carry, (size_t)c->have);
            ssize_t size = recv(c->fd, buffer + c->have, sizeof buffer - (size_t)c->have, MSG_DONTWAIT);
            if (size < 0 && errno == EAGAIN) continue;
            if (size <= 0) die(c->writer ? "the writer was cut" : "a watcher was cut");
            size += c->have;
            c->have = 0;
            got(c, buffer, (size_t)size, now_ns());
        }
    }
    double spent = rate ? seconds : (double)(stop_at - first) / 1e9;
    qsort(deliveries, delivered, sizeof *deliveries, smaller);
    qsort(acks, acked, sizeof *acks, smaller);
    printf("{\"writes\":%zu,\"expected\":%zu,\"delivered\":%zu,\"seconds\":%.3f,\"p50_us\":%u,\"p99_us\":%u,"
           "\"ack_p50_us\":%u,\"ack_p99_us\":%u}\n",
           sent, sent * (size_t)watchers, delivered, spent, part(deliveries, delivered, 0.5),
           part(deliveries, delivered, 0.99), part(acks, acked, 0.5), part(acks, acked, 0.99));
    return 0;
}
