/* A ping-pong of messages, both ends in one program: ping [COUNT]. */
#define _POSIX_C_SOURCE 200809L
#include <narrows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "ping: %s: %s\n", what, narrows_last_error());
    exit(1);
}

static void put(int fd, narrows_bytes unit)
{
    for (const char *at = unit.data; unit.len > 0;) {
        ssize_t n = write(fd, at, unit.len);
        if (n <= 0) {
            perror("write");
            exit(1);
        }
        at += n;
        unit.len -= (size_t)n;
    }
}

/* Bytes received from the peer and not yet consumed. */
struct input {
    size_t filled;
    char bytes[1 << 18];
};

/* Copies the next message to `text`. Returns its length, or -1 when the peer has hung up. */
static long get(narrows_messages *end, int fd, struct input *input, char *text, size_t size)
{
    for (;;) {
        size_t consumed;
        narrows_bytes message, unit;
        int32_t more, front = narrows_message_receive(end, input->bytes, input->filled, &consumed, &message);
        if (front < 0)
            fail("receive");
        memmove(input->bytes, input->bytes + consumed, input->filled -= consumed);
        if (front == NARROWS_FRONT_MESSAGE) {
            if (message.len > size) {
                fprintf(stderr, "ping: a message of %zu bytes, and room for %zu\n", message.len, size);
                exit(1);
            }
            memcpy(text, message.data, message.len); /* the end owns it, until the next call */
        }
        while ((more = narrows_message_next(end, &unit)) > 0)
            put(fd, unit);
        if (more < 0)
            fail("next");
        if (front == NARROWS_FRONT_MESSAGE)
            return (long)message.len;
        if (front == NARROWS_FRONT_INCOMPLETE) {
            /* There is room: no frame is longer, since a message has at most 65,535 bytes. */
            ssize_t n = read(fd, input->bytes + input->filled, sizeof input->bytes - input->filled);
            if (n <= 0)
                return -1;
            input->filled += (size_t)n;
        }
    }
}

int main(int argc, char **argv)
{
    static struct input input;
    char text[200], answer[200];
    int count = argc > 1 ? atoi(argv[1]) : 1000, fds[2];
    narrows_bytes unit;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) {
        perror("socketpair");
        return 1;
    }
    pid_t child = fork(); /* before any use of the library */
    narrows_messages *end = narrows_messages_new(NULL);
    if (child < 0 || end == NULL)
        fail("begin");
    close(fds[child != 0]);
    int fd = fds[child == 0];
    if (child == 0) {
        long len;
        while ((len = get(end, fd, &input, text, sizeof text)) >= 0) {
            if (narrows_message_send(end, text, (size_t)len, 0, &unit, NULL) != NARROWS_OK)
                fail("answer");
            put(fd, unit);
        }
        return 0;
    }
    for (int i = 0; i < count; i++) {
        struct timespec begin, now;
        narrows_sent sent;
        int len = snprintf(text, sizeof text, "{\"sensor\": \"north-east corner\", \"number\": %d, \"celsius\": 21.%d}", i, i % 10);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        if (narrows_message_send(end, text, (size_t)len, 0, &unit, &sent) != NARROWS_OK)
            fail("send");
        put(fd, unit);
        if (get(end, fd, &input, answer, sizeof answer) != len || memcmp(answer, text, (size_t)len) != 0) {
            fprintf(stderr, "ping: the answer differs from the message\n");
            return 1;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t ns = (uint64_t)((now.tv_sec - begin.tv_sec) * 1000000000LL + now.tv_nsec - begin.tv_nsec);
        narrows_message_answered(end, sent.seq, unit.len, ns);
    }
    narrows_totals out;
    narrows_message_totals(end, &out, NULL);
    printf("%d round trips, %llu bytes as %llu\n", count, (unsigned long long)out.raw_bytes, (unsigned long long)out.wire_bytes);
    narrows_messages_free(end);
    return 0;
}
