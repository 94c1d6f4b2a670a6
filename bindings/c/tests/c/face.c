/* What narrows.h promises, seen from C. `face` runs every test, `face NAME` one; see the table at the end. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <narrows.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #what, narrows_last_error());           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call fails with this status, which is also remembered, and with words that have these in them. */
#define FAILS(call, status, words)                                                                                     \
    do {                                                                                                               \
        CHECK((long)(call) == (long)(status));                                                                         \
        CHECK(narrows_last_status() == (status));                                                                      \
        CHECK(strstr(narrows_last_error(), (words)) != NULL);                                                          \
    } while (0)

#define NO_OBJECT(call, status, words)                                                                                 \
    do {                                                                                                               \
        CHECK((call) == NULL);                                                                                         \
        CHECK(narrows_last_status() == (status));                                                                      \
        CHECK(strstr(narrows_last_error(), (words)) != NULL);                                                          \
    } while (0)

/* --- data and helpers --- */

#define LEN ((size_t)1200007)

static unsigned char data[LEN];

static void fill_data(void)
{
    uint32_t state = 1;
    for (size_t i = 0; i < LEN; i++) {
        state = state * 1664525u + 1013904223u;
        /* A third repeats, a third is text of few letters, a third is noise. */
        data[i] = i % 30000 < 10000 ? (unsigned char)(i % 251) : i % 30000 < 20000 ? "etaoin sh"[(state >> 24) % 9] : (unsigned char)(state >> 24);
    }
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

struct job {
    int fd;
    narrows_stream_options options;
    size_t len;
    long status;
    pthread_t thread;
};

/* Writes `len` bytes of the data in pieces of several lengths, and closes. */
static void *write_all(void *argument)
{
    static const size_t pieces[] = {1, 70000, 0, 1447, 65536, 300000};
    struct job *job = argument;
    narrows_writer *writer = narrows_writer_open(job->fd, &job->options);
    CHECK(writer != NULL);
    for (size_t at = 0, i = 0; at < job->len; i++) {
        size_t n = pieces[i % 6] < job->len - at ? pieces[i % 6] : job->len - at;
        ptrdiff_t written = narrows_write(writer, data + at, n);
        if (written < 0)
            break;
        CHECK((size_t)written == n);
        at += n;
    }
    job->status = narrows_writer_close(writer);
    return NULL;
}

static struct job start_writer(int fd, size_t len, uint32_t flags, const char *policy)
{
    struct job job = {.fd = fd, .len = len};
    job.options.struct_size = sizeof job.options;
    job.options.flags = flags;
    job.options.policy = policy;
    job.options.threads = 2;
    return job;
}

/* Reads a stream that must be the first `len` bytes of the data. */
static void read_all(narrows_reader *reader, size_t len)
{
    static unsigned char got[100000];
    size_t at = 0;
    for (;;) {
        ptrdiff_t n = narrows_read(reader, got, at % 3 == 0 ? sizeof got : 777);
        CHECK(n >= 0);
        if (n == 0)
            break;
        CHECK(at + (size_t)n <= len);
        CHECK(memcmp(got, data + at, (size_t)n) == 0);
        at += (size_t)n;
    }
    CHECK(at == len);
}

static void pair(int fds[2])
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
}

static void tcp_pair(int fds[2])
{
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&name, &len) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fds[0], (struct sockaddr *)&name, len) == 0);
    fds[1] = accept(listener, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(listener);
}

/* Encodes the first `len` bytes; the caller frees. */
static unsigned char *encoded(size_t len, const char *policy, size_t *wire_len)
{
    narrows_stream_options options = {.struct_size = sizeof options, .policy = policy};
    narrows_encoder *encoder = narrows_encoder_new(&options);
    CHECK(encoder != NULL);
    size_t room = len + len / 10 + 1000;
    unsigned char *wire = malloc(room);
    narrows_input in = {data, len, 0};
    narrows_output out = {wire, room, 0};
    ptrdiff_t waits;
    while ((waits = narrows_encode(encoder, &in, &out, NARROWS_END)) > 0)
        CHECK(out.pos < room);
    CHECK(waits == 0 && in.pos == len);
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK);
    *wire_len = out.pos;
    return wire;
}

/* --- streams --- */

static void sockets(void)
{
    for (int kind = 0; kind < 2; kind++) {
        int fds[2];
        narrows_totals sent, received;
        (kind ? tcp_pair : pair)(fds);
        struct job job = start_writer(fds[0], LEN, 0, kind ? "fixed:lz4" : NULL);
        CHECK(pthread_create(&job.thread, NULL, write_all, &job) == 0);
        narrows_reader *reader = narrows_reader_open(fds[1], NULL);
        CHECK(reader != NULL);
        read_all(reader, LEN);
        CHECK(narrows_reader_totals(reader, &received) == NARROWS_OK && received.raw_bytes == LEN);
        CHECK(narrows_reader_totals(reader, NULL) == NARROWS_OK);
        CHECK(narrows_reader_close(reader) == NARROWS_OK);
        CHECK(pthread_join(job.thread, NULL) == 0 && job.status == NARROWS_OK);
        /* Both descriptors are the program's still. */
        CHECK(fcntl(fds[0], F_GETFD) != -1 && fcntl(fds[1], F_GETFD) != -1);
        close(fds[0]);
        close(fds[1]);
        (void)sent;
    }
}

static void pipes_and_files(void)
{
    int fds[2];
    CHECK(pipe(fds) == 0);
    struct job job = start_writer(fds[1], LEN, NARROWS_CLOSE_FD, "fixed:zstd:level=1,link");
    CHECK(pthread_create(&job.thread, NULL, write_all, &job) == 0);
    narrows_reader *reader = narrows_reader_open(fds[0], NULL);
    read_all(reader, LEN);
    CHECK(narrows_reader_close(reader) == NARROWS_OK);
    CHECK(pthread_join(job.thread, NULL) == 0 && job.status == NARROWS_OK);
    CHECK(fcntl(fds[1], F_GETFD) == -1);
    close(fds[0]);

    FILE *file = tmpfile();
    CHECK(file != NULL);
    job = start_writer(fileno(file), LEN, NARROWS_INDEX, "fixed:zstd");
    write_all(&job);
    CHECK(job.status == NARROWS_OK);
    off_t wire_len = lseek(fileno(file), 0, SEEK_END);
    CHECK(wire_len > 0 && (size_t)wire_len < LEN * 3 / 4);
    lseek(fileno(file), 0, SEEK_SET);
    reader = narrows_reader_open(fileno(file), NULL);
    read_all(reader, LEN);
    CHECK(narrows_reader_close(reader) == NARROWS_OK);

    /* An empty stream is one. */
    CHECK(ftruncate(fileno(file), 0) == 0 && lseek(fileno(file), 0, SEEK_SET) == 0);
    job = start_writer(fileno(file), 0, 0, NULL);
    write_all(&job);
    CHECK(job.status == NARROWS_OK && lseek(fileno(file), 0, SEEK_SET) == 0);
    reader = narrows_reader_open(fileno(file), NULL);
    read_all(reader, 0);
    CHECK(narrows_reader_close(reader) == NARROWS_OK);
    fclose(file);
}

/* Two streams on one socket, one in each direction. */
static void both_ways(void)
{
    int fds[2];
    pair(fds);
    narrows_stream_options options = {.struct_size = sizeof options, .flags = NARROWS_ONE_WAY};
    struct job there = start_writer(fds[0], LEN, NARROWS_ONE_WAY, NULL);
    struct job back = start_writer(fds[1], LEN / 2, NARROWS_ONE_WAY, "fixed:lz4");
    CHECK(pthread_create(&there.thread, NULL, write_all, &there) == 0);
    CHECK(pthread_create(&back.thread, NULL, write_all, &back) == 0);
    narrows_reader *at_end = narrows_reader_open(fds[1], &options), *at_begin = narrows_reader_open(fds[0], &options);
    read_all(at_end, LEN);
    read_all(at_begin, LEN / 2);
    CHECK(narrows_reader_close(at_end) == NARROWS_OK && narrows_reader_close(at_begin) == NARROWS_OK);
    CHECK(pthread_join(there.thread, NULL) == 0 && there.status == NARROWS_OK);
    CHECK(pthread_join(back.thread, NULL) == 0 && back.status == NARROWS_OK);
    close(fds[0]);
    close(fds[1]);
}

/* A small write crosses an idle link without a flush, and without the end of the stream. */
static void small_writes(void)
{
    int fds[2];
    char got[10];
    pair(fds);
    narrows_writer *writer = narrows_writer_open(fds[0], NULL);
    narrows_reader *reader = narrows_reader_open(fds[1], NULL);
    for (char i = 0; i < 20; i++) {
        CHECK(narrows_write(writer, &i, 1) == 1);
        CHECK(narrows_read(reader, got, sizeof got) == 1 && got[0] == i);
    }
    /* Who gives up is told, and tells the other. */
    FAILS(narrows_reader_close(reader), NARROWS_ERROR_TRUNCATED, "before the end");
    FAILS(narrows_writer_close(writer), NARROWS_ERROR_IO, "the receiver failed");
    close(fds[0]);
    close(fds[1]);
}

/* A reader gives up in the middle of a stream that goes on. */
static void given_up(void)
{
    int fds[2];
    char some[1000];
    pair(fds);
    struct job job = start_writer(fds[0], LEN, 0, "fixed:store");
    CHECK(pthread_create(&job.thread, NULL, write_all, &job) == 0);
    narrows_reader *reader = narrows_reader_open(fds[1], NULL);
    CHECK(narrows_read(reader, some, sizeof some) > 0);
    FAILS(narrows_reader_close(reader), NARROWS_ERROR_TRUNCATED, "before the end");
    CHECK(pthread_join(job.thread, NULL) == 0 && job.status == NARROWS_ERROR_IO);
    close(fds[0]);
    close(fds[1]);
}

/* The reader had everything, and says that it could not store it. */
static void not_stored(void)
{
    int fds[2];
    pair(fds);
    struct job job = start_writer(fds[0], 1000, 0, NULL);
    CHECK(pthread_create(&job.thread, NULL, write_all, &job) == 0);
    narrows_reader *reader = narrows_reader_open(fds[1], NULL);
    read_all(reader, 1000);
    CHECK(narrows_reader_cancel(reader) == NARROWS_OK);
    CHECK(narrows_reader_close(reader) != NARROWS_OK);
    CHECK(pthread_join(job.thread, NULL) == 0 && job.status == NARROWS_ERROR_IO);
    close(fds[0]);
    close(fds[1]);
}

/* The peer goes: an error, and no signal. */
static void peer_gone(void)
{
    int fds[2];
    CHECK(pipe(fds) == 0);
    close(fds[0]);
    struct job job = start_writer(fds[1], LEN, NARROWS_CLOSE_FD, NULL);
    write_all(&job);
    CHECK(job.status == NARROWS_ERROR_IO && strstr(narrows_last_error(), "closed the connection") != NULL);

    tcp_pair(fds);
    close(fds[1]);
    job = start_writer(fds[0], LEN, 0, NULL);
    write_all(&job);
    CHECK(job.status == NARROWS_ERROR_IO);
    close(fds[0]);

    pair(fds);
    narrows_stream_options options = {.struct_size = sizeof options, .stall_timeout_ms = 100};
    narrows_reader *reader = narrows_reader_open(fds[1], &options);
    char byte;
    FAILS(narrows_read(reader, &byte, 1), NARROWS_ERROR_IO, "no progress");
    FAILS(narrows_reader_close(reader), NARROWS_ERROR_IO, "no progress");
    close(fds[0]);
    close(fds[1]);
}

/* Damage of a stream from a pipe: what came whole is given, then the failure, and it stays. */
static void damaged_streams(void)
{
    size_t len;
    unsigned char *wire = encoded(60000, "fixed:store", &len);
    static unsigned char got[100000];
    for (int kind = 0; kind < 3; kind++) {
        int fds[2];
        CHECK(pipe(fds) == 0);
        long expected = kind == 0 ? NARROWS_ERROR_TRUNCATED : NARROWS_ERROR_CORRUPT;
        if (kind == 1)
            wire[len / 2] ^= 1;
        if (kind == 2)
            wire[0] ^= 1;
        CHECK(write(fds[1], wire, len - (kind == 0)) == (ssize_t)(len - (kind == 0)));
        close(fds[1]);
        narrows_reader *reader = narrows_reader_open(fds[0], NULL);
        ptrdiff_t n;
        size_t all = 0;
        while ((n = narrows_read(reader, got, sizeof got)) > 0)
            all += (size_t)n;
        CHECK(n == expected && narrows_last_error()[0] != 0);
        CHECK(all == (kind == 0 ? 60000u : 0u));
        CHECK(narrows_read(reader, got, sizeof got) == expected);
        CHECK(narrows_reader_close(reader) == expected);
        close(fds[0]);
    }
    free(wire);
}

/* --- misuse --- */

static void misuse(void)
{
    char byte = 0;
    int fds[2], local = 0;
    CHECK(strcmp(narrows_status_name(NARROWS_ERROR_CORRUPT), "corrupt") == 0);
    CHECK(strcmp(narrows_status_name(1), "unknown") == 0 && strcmp(narrows_status_name(-99), "unknown") == 0);
    CHECK(narrows_version()[0] != 0);

    FAILS(narrows_write(NULL, &byte, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_writer_close(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_writer_cancel(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_read(NULL, &byte, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_encode(NULL, NULL, NULL, 0), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_decode(NULL, NULL, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_next(NULL, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_messages_free(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_write((narrows_writer *)&local, &byte, 1), NARROWS_ERROR_MISUSE, "never given out");
    FAILS(narrows_encoder_free((narrows_encoder *)&local), NARROWS_ERROR_MISUSE, "never given out");

    NO_OBJECT(narrows_writer_open(-1, NULL), NARROWS_ERROR_MISUSE, "-1");
    NO_OBJECT(narrows_reader_open(-7, NULL), NARROWS_ERROR_MISUSE, "-7");
    NO_OBJECT(narrows_writer_open(7654, NULL), NARROWS_ERROR_MISUSE, "not open");
    CHECK(pipe(fds) == 0);
    NO_OBJECT(narrows_writer_open(fds[0], NULL), NARROWS_ERROR_MISUSE, "not open to be written");
    NO_OBJECT(narrows_reader_open(fds[1], NULL), NARROWS_ERROR_MISUSE, "not open to be read");

    narrows_stream_options options;
    memset(&options, 0, sizeof options);
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "struct_size");
    options.struct_size = sizeof options;
    options.flags = 1u << 30;
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "flags");
    options.flags = NARROWS_INDEX;
    NO_OBJECT(narrows_reader_open(fds[0], &options), NARROWS_ERROR_MISUSE, "flags");
    options.flags = NARROWS_CLOSE_FD;
    NO_OBJECT(narrows_encoder_new(&options), NARROWS_ERROR_MISUSE, "flags");
    options.flags = 0;
    options.reserved = 1;
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "reserved");
    options.reserved = 0;
    options.threads = 100000;
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "threads");
    options.threads = 0;
    options.policy = "balance";
    NO_OBJECT(narrows_reader_open(fds[0], &options), NARROWS_ERROR_MISUSE, "policy");
    options.policy = "fixed:zstd:level=99";
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "99");
    options.policy = "best";
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "no policy is called 'best'");
    options.policy = "\xff\xfe";
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "UTF-8");
    options.policy = "replay:/nonexistent/schedule";
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_IO, "/nonexistent/schedule");
    options.policy = "datacomp:table=/nonexistent/table";
    NO_OBJECT(narrows_writer_open(fds[1], &options), NARROWS_ERROR_MISUSE, "mode=read");
    FAILS(narrows_policy_check(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_policy_check("stall:min=9,max=1"), NARROWS_ERROR_MISUSE, "stall");
    CHECK(narrows_policy_check("messages:latency_us=20") == NARROWS_OK);
    /* A caller with a newer header: fine as long as what is new is not used. */
    struct {
        narrows_stream_options old;
        uint64_t added;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.old.struct_size = sizeof newer;
    newer.added = 1;
    NO_OBJECT(narrows_encoder_new(&newer.old), NARROWS_ERROR_UNSUPPORTED, "version");
    newer.added = 0;
    CHECK(narrows_encoder_free(narrows_encoder_new(&newer.old)) == NARROWS_OK);
    /* One with an older header. */
    newer.old.struct_size = offsetof(narrows_stream_options, flags);
    newer.old.flags = 1u << 30;
    CHECK(narrows_encoder_free(narrows_encoder_new(&newer.old)) == NARROWS_OK);
    close(fds[0]);
    close(fds[1]);

    int datagrams = socket(AF_INET, SOCK_DGRAM, 0), lone = socket(AF_INET, SOCK_STREAM, 0);
    NO_OBJECT(narrows_writer_open(datagrams, NULL), NARROWS_ERROR_MISUSE, "datagrams");
    NO_OBJECT(narrows_reader_open(lone, NULL), NARROWS_ERROR_IO, "connected");
    close(datagrams);
    close(lone);

    pair(fds);
    narrows_writer *writer = narrows_writer_open(fds[0], NULL);
    narrows_reader *reader = narrows_reader_open(fds[1], NULL);
    CHECK(writer != NULL && reader != NULL);
    CHECK(narrows_write(writer, NULL, 0) == 0);
    FAILS(narrows_write(writer, NULL, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_write(writer, &byte, SIZE_MAX), NARROWS_ERROR_MISUSE, "length");
    FAILS(narrows_read(reader, &byte, 0), NARROWS_ERROR_MISUSE, "room");
    FAILS(narrows_read(reader, NULL, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_read((narrows_reader *)writer, &byte, 1), NARROWS_ERROR_MISUSE, "no reader");
    /* None of this hurt them. */
    CHECK(narrows_write(writer, "x", 1) == 1 && narrows_read(reader, &byte, 1) == 1 && byte == 'x');
    narrows_writer_cancel(writer);
    CHECK(narrows_writer_close(writer) == NARROWS_ERROR_IO);
    FAILS(narrows_writer_close(writer), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_write(writer, &byte, 1), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_writer_cancel(writer), NARROWS_ERROR_CLOSED, "closed");
    narrows_reader_close(reader);
    FAILS(narrows_reader_close(reader), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_read(reader, &byte, 1), NARROWS_ERROR_CLOSED, "closed");
    close(fds[0]);
    close(fds[1]);
}

struct blocked {
    narrows_reader *reader;
    narrows_writer *writer;
    long result;
    pthread_t thread;
};

static void *blocks(void *argument)
{
    struct blocked *b = argument;
    static unsigned char got[100];
    if (b->reader != NULL) {
        b->result = narrows_read(b->reader, got, sizeof got);
    } else {
        do
            b->result = narrows_write(b->writer, data, LEN);
        while (b->result > 0);
    }
    return NULL;
}

static void *closes_it(void *writer)
{
    return (void *)(long)narrows_writer_close(writer);
}

/* The second thread on an object is refused, and may stop the first. */
static void two_threads(void)
{
    int fds[2];
    char byte;
    pair(fds);
    struct blocked reads = {.reader = narrows_reader_open(fds[1], NULL)};
    CHECK(pthread_create(&reads.thread, NULL, blocks, &reads) == 0);
    for (int i = 0; narrows_reader_totals(reads.reader, NULL) != NARROWS_ERROR_BUSY; i++) {
        CHECK(i < 30000);
        pause_ms(1);
    }
    FAILS(narrows_read(reads.reader, &byte, 1), NARROWS_ERROR_BUSY, "another thread");
    FAILS(narrows_reader_close(reads.reader), NARROWS_ERROR_BUSY, "another thread");
    CHECK(narrows_reader_cancel(reads.reader) == NARROWS_OK);
    CHECK(pthread_join(reads.thread, NULL) == 0 && reads.result == NARROWS_ERROR_IO);
    CHECK(narrows_reader_close(reads.reader) != NARROWS_OK);
    close(fds[0]);
    close(fds[1]);

    /* A writer that waits for a confirmation, which does not come: nobody reads. */
    pair(fds);
    pthread_t thread;
    narrows_writer *closes = narrows_writer_open(fds[0], NULL);
    CHECK(narrows_write(closes, data, 10) == 10);
    CHECK(pthread_create(&thread, NULL, closes_it, closes) == 0);
    for (int i = 0; narrows_writer_totals(closes, NULL) != NARROWS_ERROR_BUSY; i++) {
        CHECK(i < 30000);
        pause_ms(1);
    }
    CHECK(narrows_writer_cancel(closes) == NARROWS_OK);
    void *result;
    CHECK(pthread_join(thread, &result) == 0 && (long)result == NARROWS_ERROR_IO);
    FAILS(narrows_writer_cancel(closes), NARROWS_ERROR_CLOSED, "closed");
    close(fds[0]);
    close(fds[1]);

    pair(fds);
    struct blocked writes = {.writer = narrows_writer_open(fds[0], NULL)};
    CHECK(pthread_create(&writes.thread, NULL, blocks, &writes) == 0);
    for (int i = 0; narrows_writer_totals(writes.writer, NULL) != NARROWS_ERROR_BUSY; i++) {
        CHECK(i < 30000);
        pause_ms(1);
    }
    CHECK(narrows_writer_cancel(writes.writer) == NARROWS_OK);
    CHECK(pthread_join(writes.thread, NULL) == 0 && writes.result == NARROWS_ERROR_IO);
    CHECK(narrows_writer_close(writes.writer) == NARROWS_ERROR_IO);
    close(fds[0]);
    close(fds[1]);
}

/* --- encoder and decoder --- */

static void code(const char *policy, size_t in_step, size_t out_step, int flush)
{
    static unsigned char wire[2 * LEN], raw[LEN];
    narrows_stream_options options = {.struct_size = sizeof options, .policy = policy};
    narrows_encoder *encoder = narrows_encoder_new(&options);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    CHECK(encoder != NULL && decoder != NULL);
    size_t len = out_step < 100 ? 30000 : LEN, wire_len = 0, raw_len = 0, decoded = 0;
    for (size_t at = 0; at <= len; at += in_step) {
        int32_t mode = at + in_step > len ? NARROWS_END : flush ? NARROWS_FLUSH : NARROWS_CONTINUE;
        narrows_input in = {data + at, at + in_step > len ? len - at : in_step, 0};
        ptrdiff_t waits;
        do {
            narrows_output out = {wire + wire_len, out_step < sizeof wire - wire_len ? out_step : sizeof wire - wire_len, 0};
            CHECK(out.size > 0);
            waits = narrows_encode(encoder, &in, &out, mode);
            CHECK(waits >= 0);
            wire_len += out.pos;
            narrows_encoder_link_took(encoder, out.pos * 80);
        } while (waits > 0);
        CHECK(in.pos == in.size);
        if (mode == NARROWS_CONTINUE)
            continue;
        /* All that was taken is there. */
        narrows_input from = {wire, wire_len, decoded};
        ptrdiff_t more;
        size_t before;
        do {
            narrows_output to = {raw + raw_len, out_step < sizeof raw - raw_len ? out_step : sizeof raw - raw_len, 0};
            before = from.pos;
            more = narrows_decode(decoder, &from, &to);
            CHECK(more >= 0);
            raw_len += to.pos;
            if (to.pos == 0 && from.pos == before)
                break;
        } while (more > 0);
        decoded = from.pos;
        CHECK(decoded == wire_len && raw_len == at + in.size);
        CHECK((more == 0) == (mode == NARROWS_END));
    }
    CHECK(raw_len == len && memcmp(raw, data, len) == 0);
    narrows_totals sent, received;
    CHECK(narrows_encoder_totals(encoder, &sent) == NARROWS_OK && sent.raw_bytes == len && sent.wire_bytes == wire_len);
    CHECK(narrows_decoder_totals(decoder, &received) == NARROWS_OK && memcmp(&sent, &received, sizeof sent) == 0);
    CHECK(narrows_decoder_end(decoder) == NARROWS_OK);
    narrows_input in = {data, 1, 0};
    narrows_output out = {wire, sizeof wire, 0};
    FAILS(narrows_encode(encoder, &in, &out, NARROWS_CONTINUE), NARROWS_ERROR_MISUSE, "ended");
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK && narrows_decoder_free(decoder) == NARROWS_OK);
    FAILS(narrows_encode(encoder, &in, &out, NARROWS_CONTINUE), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_decode(decoder, &in, &out), NARROWS_ERROR_CLOSED, "closed");
}

/* What the policy makes of a link that takes so many nanoseconds for a byte. */
static uint64_t wire_len_at(uint64_t ns_per_byte)
{
    static unsigned char wire[2 * LEN];
    narrows_encoder *encoder = narrows_encoder_new(NULL);
    narrows_input in = {data, LEN, 0};
    narrows_totals totals;
    for (ptrdiff_t waits = 1; waits != 0;) {
        narrows_output out = {wire, 20000, 0};
        waits = narrows_encode(encoder, &in, &out, NARROWS_END);
        CHECK(waits >= 0);
        CHECK(narrows_encoder_link_took(encoder, out.pos * ns_per_byte) == NARROWS_OK);
    }
    CHECK(narrows_encoder_totals(encoder, &totals) == NARROWS_OK && totals.raw_bytes == LEN);
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK);
    return totals.wire_bytes;
}

static void coder(void)
{
    /* 2 Mbit/s against memory. */
    CHECK(wire_len_at(4000) < wire_len_at(0));
    code(NULL, 65536, 65536, 0);
    code("fixed:zstd", LEN, 2 * LEN, 0);
    code("fixed:zstd:level=1,link", 100000, 5000, 1);
    code("fixed:lz4", 300000, 700, 0);
    code("fixed:store", 997, 3, 1);
    code("stall", 400000, 100000, 0);
    code("adoc", 400000, 100000, 0);
    code("balance", 1000, 1, 1);
}

static void coder_misuse(void)
{
    unsigned char buffer[100];
    narrows_encoder *encoder = narrows_encoder_new(NULL);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    narrows_input in = {data, 10, 0};
    narrows_output out = {buffer, sizeof buffer, 0};
    FAILS(narrows_encode(encoder, NULL, &out, 0), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_encode(encoder, &in, NULL, 0), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_encode(encoder, &in, &out, 3), NARROWS_ERROR_MISUSE, "no mode");
    in.pos = 11;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "position");
    in.pos = 0;
    out.pos = 101;
    FAILS(narrows_decode(decoder, &in, &out), NARROWS_ERROR_MISUSE, "position");
    out.pos = 0;
    in.data = NULL;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "null");
    in.data = buffer;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "same memory");
    in.data = data;
    out.data = NULL;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "null");
    /* Nothing was taken, and nothing of either size is fine. */
    CHECK(in.pos == 0 && out.pos == 0);
    in.size = out.size = 0;
    CHECK(narrows_encode(encoder, &in, &out, NARROWS_FLUSH) > 0);
    CHECK(narrows_decode(decoder, &in, &out) == 1);
    FAILS(narrows_decoder_end(decoder), NARROWS_ERROR_TRUNCATED, "empty");
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK && narrows_decoder_free(decoder) == NARROWS_OK);
    FAILS(narrows_encoder_free(encoder), NARROWS_ERROR_CLOSED, "closed");
}

static void damaged_bytes(void)
{
    static unsigned char raw[60000];
    size_t len;
    unsigned char *wire = encoded(20000, "fixed:zstd", &len);
    for (size_t cut = 0; cut < len; cut += 1 + len / 300) {
        narrows_decoder *decoder = narrows_decoder_new(NULL);
        narrows_input in = {wire, cut, 0};
        narrows_output out = {raw, sizeof raw, 0};
        CHECK(narrows_decode(decoder, &in, &out) == 1);
        FAILS(narrows_decoder_end(decoder), NARROWS_ERROR_TRUNCATED, "stream");
        CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    }
    for (size_t at = 0; at < len; at += 1 + len / 300) {
        narrows_decoder *decoder = narrows_decoder_new(NULL);
        narrows_input in = {wire, len, 0};
        narrows_output out = {raw, sizeof raw, 0};
        wire[at] ^= 0x55;
        ptrdiff_t first = narrows_decode(decoder, &in, &out);
        CHECK(first < 0 || first == 1);
        CHECK(out.pos <= 20000 && memcmp(raw, data, out.pos) == 0);
        if (first < 0)
            CHECK(narrows_decode(decoder, &in, &out) == first);
        else
            CHECK(narrows_decoder_end(decoder) < 0);
        wire[at] ^= 0x55;
        CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    }
    wire = realloc(wire, len + 1);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    narrows_input in = {wire, len + 1, 0};
    narrows_output out = {raw, sizeof raw, 0};
    CHECK(narrows_decode(decoder, &in, &out) == NARROWS_ERROR_CORRUPT);
    CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    free(wire);
}

/* --- messages --- */

static size_t make_message(char *to, size_t size, int i)
{
    int len = snprintf(to, size, "SUBSCRIBE sip:u%d@example.net SIP/2.0\r\nCSeq: %d SUBSCRIBE\r\nExpires: 3600", i * 7919 % 100, i);
    return (size_t)len;
}

/* Takes a unit in; the last message is copied to `got`. Returns how many there were. */
static int take(narrows_messages *end, narrows_bytes unit, char *got, size_t *got_len)
{
    char *copy = malloc(unit.len + 1);
    int count = 0;
    memcpy(copy, unit.data, unit.len);
    for (size_t at = 0; at < unit.len;) {
        size_t consumed = 0;
        narrows_bytes message;
        int32_t front = narrows_message_receive(end, copy + at, unit.len - at, &consumed, &message);
        CHECK(front >= 0 && front != NARROWS_FRONT_INCOMPLETE && consumed > 0);
        if (front == NARROWS_FRONT_MESSAGE) {
            count++;
            memcpy(got, message.data, message.len);
            *got_len = message.len;
        }
        at += consumed;
    }
    free(copy);
    return count;
}

/* What `from` has to say without a message goes to `to`. */
static int settle(narrows_messages *from, narrows_messages *to, char *got, size_t *got_len)
{
    narrows_bytes unit;
    int32_t more;
    int messages = 0;
    while ((more = narrows_message_next(from, &unit)) > 0)
        messages += take(to, unit, got, got_len);
    CHECK(more == 0);
    return messages;
}

static char got[70000];
static size_t got_len;

static void pass(narrows_messages *from, narrows_messages *to, const char *message, size_t len, uint32_t flags)
{
    narrows_bytes unit;
    narrows_sent sent;
    settle(from, to, got, &got_len);
    CHECK(narrows_message_send(from, message, len, flags, &unit, &sent) == NARROWS_OK);
    CHECK(sent.wire_len + sent.control_len <= unit.len);
    CHECK(take(to, unit, got, &got_len) == 1);
    CHECK(got_len == len && memcmp(got, message, len) == 0);
    CHECK(narrows_message_answered(from, sent.seq, unit.len, 100000) == NARROWS_OK);
    settle(to, from, got, &got_len);
}

static void messages(void)
{
    static char most[65536];
    char text[200];
    for (uint32_t flags = 0; flags < 16; flags++) {
        narrows_message_options options = {.struct_size = sizeof options, .flags = flags};
        if ((flags & NARROWS_MESSAGES_UNORDERED) && !(flags & NARROWS_MESSAGES_BORDERS)) {
            NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "carrier");
            continue;
        }
        narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
        CHECK(a != NULL && b != NULL);
        pass(a, b, text, 0, 0);
        pass(a, b, "x", 1, 0);
        pass(a, b, most, 65535, 0);
        narrows_bytes unit;
        FAILS(narrows_message_send(a, most, 65536, 0, &unit, NULL), NARROWS_ERROR_LIMIT, "65536");
        for (int i = 0; i < 300; i++) {
            size_t len = make_message(text, sizeof text, i);
            pass(a, b, text, len, i % 10 == 0 ? NARROWS_MESSAGE_PRIVATE : 0);
            if (!(flags & NARROWS_MESSAGES_ONE_WAY))
                pass(b, a, text, len, 0);
        }
        narrows_totals sent, received;
        CHECK(narrows_message_totals(a, &sent, NULL) == NARROWS_OK && narrows_message_totals(b, NULL, &received) == NARROWS_OK);
        CHECK(sent.raw_bytes == received.raw_bytes && sent.raw_bytes > 65535 + 300 * 50);
        CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
        FAILS(narrows_message_next(a, &unit), NARROWS_ERROR_CLOSED, "closed");
    }
}

static void message_misuse(void)
{
    narrows_bytes unit, message;
    size_t consumed;
    narrows_message_options options = {.struct_size = sizeof options, .flags = 1u << 20};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "flags");
    options.flags = 0;
    options.history = 5;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "history");
    options.history = 0;
    options.message_max = 65536;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "65536");
    options.message_max = 0;
    options.seed = (narrows_bytes){"short", 5};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "dictionary");
    options.seed = (narrows_bytes){data, 65537};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_LIMIT, "65537");
    options.seed = (narrows_bytes){NULL, 5};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "null");
    options.seed.len = 0;
    options.known_count = 1;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "null");
    options.known_count = 0;
    options.policy = "messages:latency_us=soon";
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "latency_us=soon");
    options.policy = NULL;
    narrows_messages *end = narrows_messages_new(&options);
    FAILS(narrows_message_send(end, NULL, 1, 0, &unit, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_send(end, "x", 1, 0, NULL, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_send(end, "x", 1, 2, &unit, NULL), NARROWS_ERROR_MISUSE, "flags");
    FAILS(narrows_message_next(end, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, NULL, 1, &consumed, &message), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, "x", 1, NULL, &message), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, "x", 1, &consumed, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_offer(end, "x", 1), NARROWS_ERROR_MISUSE, "dictionary");
    CHECK(narrows_message_receive(end, NULL, 0, &consumed, &message) == NARROWS_FRONT_INCOMPLETE && consumed == 0);
    CHECK(narrows_message_send(end, NULL, 0, 0, &unit, NULL) == NARROWS_OK);
    CHECK(narrows_messages_free(end) == NARROWS_OK);
    FAILS(narrows_messages_free(end), NARROWS_ERROR_CLOSED, "closed");
}

/* Bytes that come one by one; a frame that was damaged, and what was lost with it; a new connection. */
static void message_trouble(void)
{
    char text[200];
    narrows_bytes unit, message;
    size_t consumed;
    narrows_message_options options = {.struct_size = sizeof options, .flags = NARROWS_MESSAGES_CHECK_ALL};
    narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
    for (int i = 0; i < 20; i++) {
        size_t len = make_message(text, sizeof text, i);
        CHECK(narrows_message_send(a, text, len, 0, &unit, NULL) == NARROWS_OK);
        char *copy = malloc(unit.len);
        memcpy(copy, unit.data, unit.len);
        size_t begin = 0;
        int32_t front = NARROWS_FRONT_NOTHING;
        for (size_t end = 1; end <= unit.len; end++) {
            front = narrows_message_receive(b, copy + begin, end - begin, &consumed, &message);
            CHECK(front >= 0);
            begin += consumed;
        }
        CHECK(front == NARROWS_FRONT_MESSAGE && begin == unit.len && message.len == len && memcmp(message.data, text, len) == 0);
        free(copy);
        pass(b, a, text, len, 0);
    }
    /* The last byte of a frame flips: the message is dropped, asked for, and comes again before the next. */
    size_t len = make_message(text, sizeof text, 21);
    CHECK(narrows_message_send(a, text, len, 0, &unit, NULL) == NARROWS_OK);
    char *copy = malloc(unit.len);
    memcpy(copy, unit.data, unit.len);
    copy[unit.len - 1] ^= 1;
    CHECK(narrows_message_receive(b, copy, unit.len, &consumed, &message) == NARROWS_FRONT_UNDECODABLE);
    CHECK(consumed == unit.len && message.len == 0);
    free(copy);
    /* A message that is refused takes nothing with it of what the peer has to hear. */
    FAILS(narrows_message_send(b, data, 65536, 0, &unit, NULL), NARROWS_ERROR_LIMIT, "65536");
    settle(b, a, got, &got_len);
    CHECK(settle(a, b, got, &got_len) == 1 && got_len == len && memcmp(got, text, len) == 0);
    len = make_message(text, sizeof text, 22);
    pass(a, b, text, len, 0);
    /* A reader of rubbish says so. */
    narrows_messages *c = narrows_messages_new(NULL);
    CHECK(narrows_message_receive(c, "\xc1\x03rubbish of all", 16, &consumed, &message) < 0);
    CHECK(narrows_last_error()[0] != 0);
    CHECK(narrows_messages_free(c) == NARROWS_OK);
    /* The other end is another one. */
    c = narrows_messages_new(&options);
    CHECK(narrows_message_reconnect(a) == NARROWS_OK);
    pass(a, c, text, len, 0);
    pass(c, a, text, len, 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK && narrows_messages_free(c) == NARROWS_OK);
}

static void dictionaries(void)
{
    enum { COUNT = 400 };
    static char samples[COUNT * 200];
    static unsigned char dictionary[4096];
    size_t lens[COUNT], total = 0, len = 0;
    for (int i = 0; i < COUNT; i++)
        total += lens[i] = make_message(samples + total, 200, i);
    CHECK(narrows_dictionary_train(samples, lens, COUNT, dictionary, sizeof dictionary, &len) == NARROWS_OK);
    CHECK(len > 100 && len <= sizeof dictionary);
    FAILS(narrows_dictionary_train(samples, lens, 1, dictionary, sizeof dictionary, &len), NARROWS_ERROR_MISUSE, "samples");
    FAILS(narrows_dictionary_train(NULL, NULL, 0, dictionary, sizeof dictionary, &len), NARROWS_ERROR_MISUSE, "samples");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, dictionary, 10, &len), NARROWS_ERROR_MISUSE, "room");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, NULL, 4096, &len), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_dictionary_train(samples, NULL, COUNT, dictionary, 4096, &len), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, dictionary, 4096, NULL), NARROWS_ERROR_MISUSE, "null");

    /* The first message is short when both ends begin with it. */
    narrows_bytes known = {dictionary, len}, unit;
    narrows_message_options options = {.struct_size = sizeof options, .seed = known, .known = &known, .known_count = 1};
    narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
    char text[200];
    narrows_sent first;
    size_t text_len = make_message(text, sizeof text, 1000);
    CHECK(narrows_message_send(a, text, text_len, 0, &unit, &first) == NARROWS_OK);
    CHECK(take(b, unit, got, &got_len) == 1 && got_len == text_len && memcmp(got, text, text_len) == 0);
    for (int i = 0; i < 50; i++)
        pass(a, b, text, make_message(text, sizeof text, 2000 + i), 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);

    /* Offered to a peer that does not know it. */
    a = narrows_messages_new(NULL);
    b = narrows_messages_new(NULL);
    CHECK(narrows_message_offer(a, dictionary, len) == 1);
    for (int i = 0; i < 50; i++)
        pass(a, b, text, make_message(text, sizeof text, 3000 + i), 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
    /* Learned in the background: nothing is lost meanwhile. */
    options = (narrows_message_options){.struct_size = sizeof options, .flags = NARROWS_MESSAGES_LEARN | NARROWS_MESSAGES_NO_HISTORY};
    a = narrows_messages_new(&options);
    b = narrows_messages_new(&options);
    for (int i = 0; i < 3000; i++)
        pass(a, b, text, make_message(text, sizeof text, i), 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
}

/* Writers and readers that answer nothing; one reader comes late, one unit is damaged. */
static void topics(void)
{
    narrows_topic_writer *writers[2] = {narrows_topic_writer_new(NULL), narrows_topic_writer_new(NULL)};
    narrows_topic_reader *readers[2] = {narrows_topic_reader_new(NULL), NULL};
    narrows_bytes unit, message;
    narrows_missed missed;
    char text[200];
    CHECK(narrows_topic_reader_came(writers[0]) == NARROWS_OK);
    for (int i = 0; i < 300; i++) {
        narrows_topic_writer *writer = writers[i % 2];
        if (i == 200)
            readers[1] = narrows_topic_reader_new(NULL);
        size_t len = make_message(text, sizeof text, i);
        if (i == 100)
            CHECK(narrows_topic_offer(writer, data, 1000) == 1);
        while (narrows_topic_announcement(writer, &unit) > 0)
            for (int r = 0; r < 2 && readers[r] != NULL; r++) {
                CHECK(narrows_topic_receive(readers[r], unit.data, unit.len) == NARROWS_OK);
                CHECK(narrows_topic_next(readers[r], &message) == 0);
            }
        CHECK(narrows_topic_send(writer, text, len, &unit) == NARROWS_OK);
        for (int r = 0; r < 2 && readers[r] != NULL; r++) {
            CHECK(narrows_topic_receive(readers[r], unit.data, unit.len) == NARROWS_OK);
            FAILS(narrows_topic_receive(readers[r], unit.data, unit.len), NARROWS_ERROR_MISUSE, "narrows_topic_next");
            CHECK(narrows_topic_next(readers[r], &message) == 1);
            CHECK(message.len == len && memcmp(message.data, text, len) == 0);
            CHECK(narrows_topic_next(readers[r], &message) == 0 && message.len == 0);
        }
    }
    CHECK(narrows_topic_receive(readers[0], "\xff", 1) < 0 && narrows_topic_next(readers[0], &message) == 0);
    CHECK(narrows_topic_missed(readers[0], &missed) == NARROWS_OK && missed.damaged == 1 && missed.unannounced == 0);
    FAILS(narrows_topic_send(writers[0], NULL, 1, &unit), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_send(writers[0], "x", 1, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_announcement(writers[0], NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_receive(readers[0], NULL, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_next(readers[0], NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_next((narrows_topic_reader *)writers[0], &message), NARROWS_ERROR_MISUSE, "no topic reader");
    for (int i = 0; i < 2; i++) {
        CHECK(narrows_topic_writer_free(writers[i]) == NARROWS_OK && narrows_topic_reader_free(readers[i]) == NARROWS_OK);
        FAILS(narrows_topic_send(writers[i], "x", 1, &unit), NARROWS_ERROR_CLOSED, "closed");
        FAILS(narrows_topic_receive(readers[i], "x", 1), NARROWS_ERROR_CLOSED, "closed");
    }
}

/* --- threads --- */

static void *own_objects(void *argument)
{
    long seed = (long)argument;
    char text[200], own[200];
    size_t own_len = 0;
    for (int round = 0; round < 3; round++) {
        size_t len = 50000 + (size_t)seed * 1000, wire_len;
        unsigned char *wire = encoded(len, seed % 2 ? "fixed:zstd" : "balance", &wire_len), *raw = malloc(len);
        narrows_decoder *decoder = narrows_decoder_new(NULL);
        narrows_input in = {wire, wire_len, 0};
        narrows_output out = {raw, len, 0};
        CHECK(narrows_decode(decoder, &in, &out) == 0 && out.pos == len && memcmp(raw, data, len) == 0);
        CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
        free(wire);
        free(raw);
        narrows_messages *a = narrows_messages_new(NULL), *b = narrows_messages_new(NULL);
        for (int i = 0; i < 200; i++) {
            narrows_bytes unit;
            size_t n = make_message(text, sizeof text, (int)seed * 1000 + i);
            CHECK(narrows_message_send(a, text, n, 0, &unit, NULL) == NARROWS_OK);
            CHECK(take(b, unit, own, &own_len) == 1 && own_len == n && memcmp(own, text, n) == 0);
            CHECK(settle(b, a, own, &own_len) == 0);
        }
        CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
        /* The words of a failure are this thread's. */
        snprintf(text, sizeof text, "policy-%ld", seed);
        CHECK(narrows_policy_check(text) == NARROWS_ERROR_MISUSE);
        CHECK(strstr(narrows_last_error(), text) != NULL);
    }
    return NULL;
}

/* Threads that use, free and replace the same handle: every call is whole, or says why not. */
static narrows_encoder *volatile contended;
static pthread_mutex_t handle_lock = PTHREAD_MUTEX_INITIALIZER;

static narrows_encoder *contended_handle(narrows_encoder *newer)
{
    CHECK(pthread_mutex_lock(&handle_lock) == 0);
    if (newer != NULL)
        contended = newer;
    narrows_encoder *now = contended;
    CHECK(pthread_mutex_unlock(&handle_lock) == 0);
    return now;
}

static void *replaces(void *argument)
{
    for (int i = 0; i < 300; i++) {
        narrows_encoder *mine = contended_handle(NULL);
        narrows_totals totals = {7, 7};
        narrows_status status = narrows_encoder_totals(mine, &totals);
        CHECK(status == NARROWS_OK ? totals.raw_bytes == 0 : status == NARROWS_ERROR_BUSY || status == NARROWS_ERROR_CLOSED);
        if (argument != NULL) {
            status = narrows_encoder_free(mine);
            CHECK(status == NARROWS_OK || status == NARROWS_ERROR_BUSY || status == NARROWS_ERROR_CLOSED);
            if (status == NARROWS_OK) {
                CHECK(narrows_encoder_free(mine) == NARROWS_ERROR_CLOSED);
                contended_handle(narrows_encoder_new(NULL));
            }
        }
    }
    return NULL;
}

static narrows_messages *shared;

static void *contends(void *argument)
{
    long done = 0;
    (void)argument;
    for (int i = 0; i < 2000; i++) {
        narrows_bytes unit;
        narrows_status status = narrows_message_send(shared, "a message of some length", 24, 0, &unit, NULL);
        CHECK(status == NARROWS_OK || status == NARROWS_ERROR_BUSY);
        done += status == NARROWS_OK;
    }
    return (void *)done;
}

static void threads(void)
{
    pthread_t all[8];
    for (long i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, own_objects, (void *)i) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    contended_handle(narrows_encoder_new(NULL));
    for (long i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, replaces, (void *)(i % 2)) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(narrows_encoder_free(contended) == NARROWS_OK);
    /* One object in many hands: each call is whole or refused. */
    shared = narrows_messages_new(NULL);
    long done = 0;
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, contends, NULL) == 0);
    for (int i = 0; i < 8; i++) {
        void *count;
        CHECK(pthread_join(all[i], &count) == 0);
        done += (long)count;
    }
    narrows_totals sent;
    CHECK(narrows_message_totals(shared, &sent, NULL) == NARROWS_OK && sent.raw_bytes == 24u * (uint64_t)done);
    CHECK(done > 0 && narrows_messages_free(shared) == NARROWS_OK);
}

/* --- for the tests in Rust: one end of a stream is ours --- */

static int be_writer(const char *policy)
{
    struct job job = start_writer(0, LEN, 0, policy);
    write_all(&job);
    CHECK(job.status == NARROWS_OK);
    return 0;
}

static int be_reader(void)
{
    narrows_reader *reader = narrows_reader_open(0, NULL);
    read_all(reader, LEN);
    CHECK(narrows_reader_close(reader) == NARROWS_OK);
    return 0;
}

/* To stdout, as they are or encoded. */
static int be_file(int raw)
{
    size_t len = LEN;
    unsigned char *wire = raw ? data : encoded(LEN, "fixed:zstd:level=1", &len);
    CHECK(fwrite(wire, 1, len, stdout) == len && fflush(stdout) == 0);
    if (!raw)
        free(wire);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"sockets", sockets},           {"pipes_and_files", pipes_and_files},
        {"both_ways", both_ways},       {"small_writes", small_writes},
        {"not_stored", not_stored},     {"peer_gone", peer_gone},
        {"given_up", given_up},
        {"misuse", misuse},             {"damaged_streams", damaged_streams},
        {"two_threads", two_threads},   {"coder", coder},
        {"coder_misuse", coder_misuse}, {"damaged_bytes", damaged_bytes},
        {"messages", messages},         {"message_misuse", message_misuse},
        {"dictionaries", dictionaries}, {"message_trouble", message_trouble},
        {"topics", topics},             {"threads", threads},
    };
    int ran = 0;
    /* Ten times what it takes under valgrind: what hangs is ended. */
    alarm(300);
    fill_data();
    if (argc == 3 && strcmp(argv[1], "--writer") == 0)
        return be_writer(argv[2]);
    if (argc == 2 && strcmp(argv[1], "--reader") == 0)
        return be_reader();
    if (argc == 2 && (strcmp(argv[1], "--raw") == 0 || strcmp(argv[1], "--encoded") == 0))
        return be_file(argv[1][2] == 'r');
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
            continue;
        fprintf(stderr, "%s\n", tests[i].name);
        tests[i].run();
        ran++;
    }
    CHECK(ran > 0);
    return 0;
}
