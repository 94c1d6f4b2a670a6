/* Streams over descriptors. */
#include "face.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

void test_sockets(void)
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
        /* Both descriptors are still open. */
        CHECK(fcntl(fds[0], F_GETFD) != -1 && fcntl(fds[1], F_GETFD) != -1);
        close(fds[0]);
        close(fds[1]);
        (void)sent;
    }
}

void test_pipes_and_files(void)
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

    /* An empty stream is valid. */
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
void test_both_ways(void)
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
void test_small_writes(void)
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
    /* Closing a reader early is an error there and at the writer. */
    FAILS(narrows_reader_close(reader), NARROWS_ERROR_TRUNCATED, "before the end");
    FAILS(narrows_writer_close(writer), NARROWS_ERROR_IO, "the receiver failed");
    close(fds[0]);
    close(fds[1]);
}

/* A reader gives up in the middle of a stream. */
void test_given_up(void)
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

/* The reader has everything, but reports that it could not store it. */
void test_not_stored(void)
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

/* A peer that is gone is an error, not a signal. */
void test_peer_gone(void)
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

/* A damaged stream from a pipe: the intact bytes are returned, then the failure, which is final. */
void test_damaged_streams(void)
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

/* Whether the stream ends within ten seconds. */
static int ends(int fd)
{
    struct pollfd peer = {.fd = fd, .events = POLLIN};
    char some[1000];
    ssize_t n = -1;
    while (poll(&peer, 1, 10000) == 1 && (n = read(fd, some, sizeof some)) > 0)
        n = -1;
    return n == 0;
}

/* Descriptors run out at each step of opening: a failed open leaks none, so the peer sees the end. */
void test_out_of_descriptors(void)
{
    narrows_stream_options options = {.struct_size = sizeof options, .flags = NARROWS_CLOSE_FD};
    struct rlimit usual;
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    for (int writes = 0; writes < 2; writes++) {
        int refused = 0;
        for (;; refused++) {
            int fds[2];
            pair(fds);
            /* All up to the second one are in use; `refused` more are free. */
            struct rlimit few = {(rlim_t)(fds[1] + 1 + refused), usual.rlim_max};
            CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
            narrows_writer *writer = writes ? narrows_writer_open(fds[0], &options) : NULL;
            narrows_reader *reader = writes ? NULL : narrows_reader_open(fds[0], &options);
            CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
            int opened = writer != NULL || reader != NULL;
            if (opened) {
                CHECK(writes ? narrows_writer_cancel(writer) == NARROWS_OK : narrows_reader_cancel(reader) == NARROWS_OK);
                CHECK(writes ? narrows_writer_close(writer) != NARROWS_OK : narrows_reader_close(reader) != NARROWS_OK);
                CHECK(fcntl(fds[0], F_GETFD) == -1);
            } else {
                CHECK(narrows_last_status() == NARROWS_ERROR_IO);
                CHECK(close(fds[0]) == 0);
            }
            CHECK(ends(fds[1]));
            close(fds[1]);
            if (opened)
                break;
        }
        CHECK(refused > 0);
    }
}

/* A failed stream also has totals. */
void test_totals_of_failures(void)
{
    static unsigned char got[1000];
    int fds[2];
    narrows_totals totals;
    size_t len;
    unsigned char *wire = encoded(60000, "fixed:store", &len);
    CHECK(pipe(fds) == 0);
    CHECK(write(fds[1], wire, len - 1) == (ssize_t)(len - 1));
    close(fds[1]);
    free(wire);
    narrows_reader *reader = narrows_reader_open(fds[0], NULL);
    ptrdiff_t n;
    while ((n = narrows_read(reader, got, sizeof got)) > 0)
        ;
    CHECK(n == NARROWS_ERROR_TRUNCATED);
    CHECK(narrows_reader_totals(reader, &totals) == NARROWS_OK);
    CHECK(totals.raw_bytes == 60000 && totals.wire_bytes == len - 1);
    CHECK(narrows_reader_close(reader) == NARROWS_ERROR_TRUNCATED);
    close(fds[0]);

    pair(fds);
    narrows_writer *writer = narrows_writer_open(fds[0], NULL);
    reader = narrows_reader_open(fds[1], NULL);
    CHECK(narrows_write(writer, data, 500) == 500);
    CHECK(narrows_read(reader, got, sizeof got) > 0);
    CHECK(narrows_reader_close(reader) == NARROWS_ERROR_TRUNCATED);
    while ((n = narrows_write(writer, data, 500)) > 0)
        pause_ms(1);
    CHECK(n == NARROWS_ERROR_IO);
    CHECK(narrows_writer_totals(writer, &totals) == NARROWS_OK && totals.raw_bytes >= 500 && totals.wire_bytes > 0);
    CHECK(narrows_writer_close(writer) == NARROWS_ERROR_IO);
    close(fds[0]);
    close(fds[1]);
}

/* Finishing stores the final totals at both ends, also of a failed stream. */
void test_totals_at_the_end(void)
{
    static unsigned char got[100000];
    int fds[2];
    narrows_totals sent = {1, 1}, received = {1, 1}, none = {7, 7};
    CHECK(pipe(fds) == 0);
    narrows_writer *writer = narrows_writer_open(fds[1], NULL);
    narrows_reader *reader = narrows_reader_open(fds[0], NULL);
    CHECK(narrows_write(writer, data, 50000) == 50000);
    CHECK(narrows_writer_finish(writer, &sent) == NARROWS_OK);
    CHECK(sent.raw_bytes == 50000 && sent.wire_bytes > 0);
    size_t all = 0;
    ptrdiff_t n;
    while ((n = narrows_read(reader, got, sizeof got)) > 0)
        all += (size_t)n;
    CHECK(n == 0 && all == 50000);
    CHECK(narrows_reader_finish(reader, &received) == NARROWS_OK);
    CHECK(received.raw_bytes == sent.raw_bytes && received.wire_bytes == sent.wire_bytes);
    /* Both are closed: nothing is stored. */
    FAILS(narrows_writer_finish(writer, &none), NARROWS_ERROR_CLOSED, "writer");
    FAILS(narrows_reader_finish(reader, &none), NARROWS_ERROR_CLOSED, "reader");
    FAILS(narrows_writer_finish(NULL, &none), NARROWS_ERROR_MISUSE, "null");
    CHECK(none.raw_bytes == 7 && none.wire_bytes == 7);
    close(fds[0]);
    close(fds[1]);

    pair(fds);
    writer = narrows_writer_open(fds[0], NULL);
    reader = narrows_reader_open(fds[1], NULL);
    FAILS(narrows_writer_finish(writer, (narrows_totals *)((char *)&none + 1)), NARROWS_ERROR_MISUSE, "totals");
    CHECK(narrows_write(writer, data, 500) == 500);
    CHECK(narrows_read(reader, got, sizeof got) > 0);
    CHECK(narrows_reader_finish(reader, &received) == NARROWS_ERROR_TRUNCATED && received.raw_bytes > 0);
    CHECK(narrows_writer_finish(writer, &sent) == NARROWS_ERROR_IO && sent.raw_bytes == 500 && sent.wire_bytes > 0);
    close(fds[0]);
    close(fds[1]);
    pair(fds);
    CHECK(narrows_writer_cancel(writer = narrows_writer_open(fds[0], NULL)) == NARROWS_OK);
    CHECK(narrows_writer_finish(writer, NULL) == NARROWS_ERROR_IO);
    close(fds[0]);
    close(fds[1]);
}

/* A stream ends with its last frame, even if the other end of the pipe or socket stays open. */
void test_end_of_an_open_pipe(void)
{
    for (int kind = 0; kind < 2; kind++) {
        int fds[2];
        narrows_stream_options options = {.struct_size = sizeof options, .flags = kind ? NARROWS_ONE_WAY : 0};
        if (kind)
            pair(fds);
        else
            CHECK(pipe(fds) == 0);
        struct job job = start_writer(fds[1], LEN, options.flags, "fixed:lz4");
        /* A duplicate of the write end, which stays open. */
        int other = dup(fds[1]);
        CHECK(other >= 0 && pthread_create(&job.thread, NULL, write_all, &job) == 0);
        narrows_reader *reader = narrows_reader_open(fds[0], &options);
        read_all(reader, LEN);
        CHECK(narrows_reader_close(reader) == NARROWS_OK);
        CHECK(pthread_join(job.thread, NULL) == 0 && job.status == NARROWS_OK);
        close(other);
        close(fds[0]);
        close(fds[1]);
    }
    /* In a file nothing may follow the stream. */
    size_t len;
    char byte;
    unsigned char *wire = encoded(1, "fixed:store", &len);
    FILE *file = tmpfile();
    CHECK(file != NULL && fwrite(wire, 1, len, file) == len && fputc('x', file) == 'x' && fflush(file) == 0);
    rewind(file);
    narrows_reader *reader = narrows_reader_open(fileno(file), NULL);
    ptrdiff_t n;
    while ((n = narrows_read(reader, &byte, 1)) > 0)
        ;
    CHECK(n == NARROWS_ERROR_CORRUPT);
    CHECK(narrows_reader_close(reader) == NARROWS_ERROR_CORRUPT);
    fclose(file);
    free(wire);
}
