/* Wrong calls are reported and do no harm. */
#include "face.h"
#include <fcntl.h>
#include <sys/socket.h>

void test_misuse(void)
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
    FAILS(narrows_write((narrows_writer *)&local, &byte, 1), NARROWS_ERROR_MISUSE, "never returned");
    FAILS(narrows_encoder_free((narrows_encoder *)&local), NARROWS_ERROR_MISUSE, "never returned");

    NO_OBJECT(narrows_writer_open(-1, NULL), NARROWS_ERROR_MISUSE, "-1");
    NO_OBJECT(narrows_reader_open(-7, NULL), NARROWS_ERROR_MISUSE, "-7");
    NO_OBJECT(narrows_writer_open(7654, NULL), NARROWS_ERROR_MISUSE, "not open");
    CHECK(pipe(fds) == 0);
    NO_OBJECT(narrows_writer_open(fds[0], NULL), NARROWS_ERROR_MISUSE, "not open for writing");
    NO_OBJECT(narrows_reader_open(fds[1], NULL), NARROWS_ERROR_MISUSE, "not open for reading");

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
    /* A caller with a newer header: accepted while new members are 0. */
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
    /* A caller with an older header. */
    newer.old.struct_size = offsetof(narrows_stream_options, flags);
    newer.old.flags = 1u << 30;
    CHECK(narrows_encoder_free(narrows_encoder_new(&newer.old)) == NARROWS_OK);
    close(fds[0]);
    close(fds[1]);

    int datagrams = socket(AF_INET, SOCK_DGRAM, 0), lone = socket(AF_INET, SOCK_STREAM, 0);
    NO_OBJECT(narrows_writer_open(datagrams, NULL), NARROWS_ERROR_MISUSE, "datagram socket");
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
    FAILS(narrows_read((narrows_reader *)writer, &byte, 1), NARROWS_ERROR_MISUSE, "invalid reader handle");
    /* The streams still work. */
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
