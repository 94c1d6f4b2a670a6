/* Threads and fork. */
#include "face.h"
#include <signal.h>
#include <sys/wait.h>

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

/* A second thread on an object is refused, but may cancel the call of the first. */
void test_two_threads(void)
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

    /* A writer that waits for a confirmation that never comes, since nobody reads. */
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

/* A forked child's calls are refused at once, since it has none of the threads; the parent's streams
 * continue. */
void test_forked(void)
{
    int fds[2], status;
    char byte;
    pair(fds);
    narrows_writer *writer = narrows_writer_open(fds[0], NULL);
    narrows_reader *reader = narrows_reader_open(fds[1], NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        for (int i = 0; i < 2; i++) {
            FAILS(narrows_write(writer, "x", 1), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_writer_totals(writer, NULL), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_writer_cancel(writer), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_writer_close(writer), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_read(reader, &byte, 1), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_reader_totals(reader, NULL), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_reader_cancel(reader), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_reader_close(reader), NARROWS_ERROR_MISUSE, "fork");
        }
        /* No exit: valgrind would report everything that only the threads refer to as leaked. */
        raise(SIGKILL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    pthread_t thread;
    void *result;
    CHECK(narrows_write(writer, "x", 1) == 1 && narrows_read(reader, &byte, 1) == 1 && byte == 'x');
    CHECK(pthread_create(&thread, NULL, closes_it, writer) == 0);
    CHECK(narrows_read(reader, &byte, 1) == 0 && narrows_reader_close(reader) == NARROWS_OK);
    CHECK(pthread_join(thread, &result) == 0 && (long)result == NARROWS_OK);
    close(fds[0]);
    close(fds[1]);
}

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
        /* The last error belongs to this thread. */
        snprintf(text, sizeof text, "policy-%ld", seed);
        CHECK(narrows_policy_check(text) == NARROWS_ERROR_MISUSE);
        CHECK(strstr(narrows_last_error(), text) != NULL);
    }
    return NULL;
}

/* Threads use, free and replace the same handle: every call completes or is refused. */
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

void test_threads(void)
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
    /* Several threads share one object: each call completes or is refused. */
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
