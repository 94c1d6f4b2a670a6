/* Tests of narrows.h from C. `face` runs every test, `face NAME` one; see the table at the end. */
#include "face.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

/* --- data and helpers --- */

unsigned char data[LEN];

static void fill_data(void)
{
    uint32_t state = 1;
    for (size_t i = 0; i < LEN; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = i % 30000 < 10000 ? (unsigned char)(i % 251) : i % 30000 < 20000 ? "etaoin sh"[(state >> 24) % 9] : (unsigned char)(state >> 24);
    }
}

void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

void *write_all(void *argument)
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

struct job start_writer(int fd, size_t len, uint32_t flags, const char *policy)
{
    struct job job = {.fd = fd, .len = len};
    job.options.struct_size = sizeof job.options;
    job.options.flags = flags;
    job.options.policy = policy;
    job.options.threads = 2;
    return job;
}

void read_all(narrows_reader *reader, size_t len)
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

void pair(int fds[2])
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
}

void tcp_pair(int fds[2])
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

unsigned char *encoded(size_t len, const char *policy, size_t *wire_len)
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

/* --- one end of a stream, for the tests in Rust --- */

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

/* Writes the data to stdout, raw or encoded. */
static int be_file(int raw)
{
    size_t len = LEN;
    unsigned char *wire = raw ? data : encoded(LEN, "fixed:zstd:level=1", &len);
    CHECK(fwrite(wire, 1, len, stdout) == len && fflush(stdout) == 0);
    if (!raw)
        free(wire);
    return 0;
}

#define TEST(name) {#name, test_##name}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        TEST(sockets),
        TEST(pipes_and_files),
        TEST(both_ways),
        TEST(small_writes),
        TEST(not_stored),
        TEST(peer_gone),
        TEST(given_up),
        TEST(misuse),
        TEST(damaged_streams),
        TEST(two_threads),
        TEST(coder),
        TEST(coder_misuse),
        TEST(damaged_bytes),
        TEST(once),
        TEST(once_misuse),
        TEST(used_again),
        TEST(files),
        TEST(places_to_begin_at),
        TEST(file_options),
        TEST(file_misuse),
        TEST(damaged_files),
        TEST(threads_on_a_file),
        TEST(messages),
        TEST(message_misuse),
        TEST(dictionaries),
        TEST(message_trouble),
        TEST(out_of_descriptors),
        TEST(totals_of_failures),
        TEST(totals_at_the_end),
        TEST(end_of_an_open_pipe),
        TEST(forked),
        TEST(topic_unit_half_bad),
        TEST(topics),
        TEST(threads),
    };
    int ran = 0;
    /* Ends a hanging test. Ten times the duration under valgrind. */
    alarm(300);
    fill_data();
    if (argc == 3 && strcmp(argv[1], "--writer") == 0)
        return be_writer(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--file") == 0)
        return be_file_reader(argv[2]);
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
