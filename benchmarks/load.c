/* A closed-loop load client: N connections, one request in flight on each, prebuilt bytes, whole replies counted.
 *
 *     load PORT CONNECTIONS SECONDS WARM_SECONDS http|resp|nats REPLIES REQUESTS [HELLO]
 *
 * REQUESTS holds requests, each after its length (u32, little endian); connection i begins with the i-th and goes on
 * in steps of CONNECTIONS. A request is complete when REPLIES replies have come: answers of HTTP by Content-Length or
 * chunks, values of RESP, acks of JetStream. HELLO has the form of REQUESTS; connection i begins by sending the i-th
 * (NATS: each has an inbox of its own). It prints JSON: requests and bytes read after the warm-up, requests of all time,
 * replies that were errors, percentiles of latency in us.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HTTP, RESP, NATS };
enum { HEAD, BODY, CHUNK_SIZE, CHUNK, TRAILER };

#define LINE_MAX_BYTES 8192
#define SLOTS (1 << 22)

typedef struct {
    int fd, state, chunked;
    long left;      /* bytes of a body still to come */
    long values;    /* RESP: values still to come */
    int replies;    /* of the request under way */
    size_t request, sent;
    int64_t began;
    int line;
    char text[LINE_MAX_BYTES];
} Conn;

static int kind, replies_wanted, connections;

typedef struct {
    char *data;
    size_t *starts, *lengths, count;
} Pieces;

static Pieces requests, hellos;
static uint32_t *latency;
static size_t latencies;
static long done, errors, done_all;
static int64_t bytes_read;
static int64_t warm_until, stop_at;
static int epoll_fd;
static char first_error[200];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *why) {
    fprintf(stderr, "load: %s: %s\n", why, strerror(errno));
    exit(1);
}

static void note_error(const char *text) {
    if (!errors++) snprintf(first_error, sizeof first_error, "%.180s", text);
}

static Pieces read_pieces(const char *path) {
    Pieces found = {0};
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    found.data = malloc(size + 1);
    if (fread(found.data, 1, size, file) != size) die(path);
    fclose(file);
    found.starts = malloc((size / 4 + 1) * sizeof *found.starts);
    found.lengths = malloc((size / 4 + 1) * sizeof *found.lengths);
    for (size_t at = 0; at + 4 <= size;) {
        uint32_t length;
        memcpy(&length, found.data + at, 4);
        found.starts[found.count] = at + 4;
        found.lengths[found.count++] = length;
        at += 4 + length;
    }
    return found;
}

static void watch(Conn *c, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event)) die("epoll_ctl");
}

static void send_more(Conn *c) {
    char *data = requests.data + requests.starts[c->request];
    size_t size = requests.lengths[c->request];
    while (c->sent < size) {
        ssize_t n = send(c->fd, data + c->sent, size - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            watch(c, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0) die("send");
        c->sent += (size_t)n;
    }
}

static void begin(Conn *c) {
    c->sent = 0;
    c->replies = 0;
    c->began = now_ns();
    send_more(c);
}

static void reply(Conn *c) {
    if (++c->replies < replies_wanted) return;
    int64_t now = now_ns();
    done_all++;
    if (now >= warm_until && now <= stop_at) {
        done++;
        if (latencies < SLOTS) latency[latencies++] = (uint32_t)((now - c->began) / 1000);
    }
    c->request = (c->request + (size_t)connections) % requests.count;
    if (now < stop_at) begin(c);
}

/* One whole line, without its end. */
static void http_line(Conn *c) {
    if (c->state == CHUNK_SIZE) {
        c->left = strtol(c->text, NULL, 16);
        c->state = c->left ? CHUNK : TRAILER;
        if (c->left) c->left += 2;
    } else if (c->state == TRAILER) {
        if (c->line) return;
        c->state = HEAD;
        c->left = -1;
        reply(c);
    } else if (!strncmp(c->text, "HTTP/1.1 ", 9)) {
        c->left = 0;
        c->chunked = 0;
        if (c->text[9] != '2') note_error(c->text);
    } else if (!strncasecmp(c->text, "content-length:", 15)) {
        c->left = strtol(c->text + 15, NULL, 10);
    } else if (!strncasecmp(c->text, "transfer-encoding:", 18)) {
        c->chunked = 1;
    } else if (!c->line) {
        if (c->chunked) c->state = CHUNK_SIZE;
        else if (c->left) c->state = BODY;
        else reply(c);
    }
}

static void resp_value(Conn *c) {
    if (--c->values == 0) {
        c->values = 1;
        reply(c);
    }
}

static void resp_line(Conn *c) {
    long size = strtol(c->text + 1, NULL, 10);
    if (c->text[0] == '-') note_error(c->text);
    if (c->text[0] == '$' && size >= 0) {
        c->left = size + 2;
        c->state = BODY;
    } else if (c->text[0] == '*' && size > 0) {
        c->values += size - 1;
    } else {
        resp_value(c);
    }
}

static void nats_line(Conn *c) {
    if (!strncmp(c->text, "MSG ", 4)) {
        c->left = strtol(strrchr(c->text, ' ') + 1, NULL, 10) + 2;
        c->state = BODY;
        c->line = 0;
    } else if (!strncmp(c->text, "PING", 4)) {
        if (send(c->fd, "PONG\r\n", 6, MSG_NOSIGNAL) != 6) die("pong");
    } else if (c->text[0] == '-') {
        note_error(c->text);
    }
}

static void body_over(Conn *c) {
    if (c->state == CHUNK) {
        c->state = CHUNK_SIZE;
        return;
    }
    c->state = HEAD;
    if (kind == RESP) {
        resp_value(c);
    } else if (kind == NATS) {
        c->text[c->line] = 0;
        if (strstr(c->text, "\"error\"")) note_error(c->text);
        c->line = 0;
        reply(c);
    } else {
        reply(c);
    }
}

static void feed(Conn *c, const char *data, size_t size) {
    size_t at = 0;
    while (at < size) {
        if (c->state == BODY || c->state == CHUNK) {
            size_t take = size - at < (size_t)c->left ? size - at : (size_t)c->left;
            if (kind == NATS) {
                size_t keep = take;
                if (c->line + keep >= LINE_MAX_BYTES) keep = LINE_MAX_BYTES - 1 - (size_t)c->line;
                memcpy(c->text + c->line, data + at, keep);
                c->line += (int)keep;
            }
            at += take;
            c->left -= (long)take;
            if (!c->left) body_over(c);
            continue;
        }
        const char *end = memchr(data + at, '\n', size - at);
        size_t take = end ? (size_t)(end - data) - at + 1 : size - at;
        size_t keep = take;
        if (c->line + keep >= LINE_MAX_BYTES) keep = LINE_MAX_BYTES - 1 - (size_t)c->line;
        memcpy(c->text + c->line, data + at, keep);
        c->line += (int)keep;
        at += take;
        if (!end) continue;
        while (c->line && (c->text[c->line - 1] == '\n' || c->text[c->line - 1] == '\r')) c->line--;
        c->text[c->line] = 0;
        if (kind == HTTP) http_line(c);
        else if (kind == RESP) resp_line(c);
        else nats_line(c);
        c->line = 0;
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static unsigned percentile(double share) {
    return latencies ? latency[(size_t)(share * (double)(latencies - 1))] : 0;
}

int main(int argc, char **argv) {
    if (argc < 8) {
        fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS WARM_SECONDS http|resp|nats REPLIES REQUESTS [HELLO]\n");
        return 2;
    }
    connections = atoi(argv[2]);
    double seconds = atof(argv[3]), warm = atof(argv[4]);
    kind = !strcmp(argv[5], "http") ? HTTP : !strcmp(argv[5], "resp") ? RESP : NATS;
    replies_wanted = atoi(argv[6]);
    requests = read_pieces(argv[7]);
    if (argc > 8) hellos = read_pieces(argv[8]);
    latency = malloc(SLOTS * sizeof *latency);
    epoll_fd = epoll_create1(0);
    Conn *all = calloc((size_t)connections, sizeof *all);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    for (int i = 0; i < connections; i++) {
        Conn *c = all + i;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
        int on = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->request = (size_t)i % requests.count;
        c->values = 1;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
        if (hellos.count) {
            size_t at = (size_t)i % hellos.count, size = hellos.lengths[at];
            if (send(c->fd, hellos.data + hellos.starts[at], size, MSG_NOSIGNAL) != (ssize_t)size) die("hello");
        }
    }
    int64_t start = now_ns();
    warm_until = start + (int64_t)(warm * 1e9);
    stop_at = warm_until + (int64_t)(seconds * 1e9);
    for (int i = 0; i < connections; i++) begin(all + i);
    static char buffer[1 << 18];
    struct epoll_event events[256];
    while (now_ns() < stop_at) {
        int n = epoll_wait(epoll_fd, events, 256, 100);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) {
                watch(c, EPOLLIN);
                send_more(c);
            }
            if (!(events[i].events & ~(uint32_t)EPOLLOUT)) continue;
            ssize_t got = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                errno = got ? errno : ECONNRESET;
                die("recv");
            }
            if (now_ns() >= warm_until) bytes_read += got;
            feed(c, buffer, (size_t)got);
        }
    }
    qsort(latency, latencies, sizeof *latency, by_size);
    if (errors) fprintf(stderr, "load: first error: %s\n", first_error);
    printf("{\"requests\":%ld,\"requests_all\":%ld,\"seconds\":%.6f,\"errors\":%ld,\"bytes\":%lld,"
           "\"p50_us\":%u,\"p99_us\":%u}\n",
           done, done_all, seconds, errors, (long long)bytes_read, percentile(0.5), percentile(0.99));
    return 0;
}
