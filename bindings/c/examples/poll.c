/* Streams over a non-blocking socket in a loop of poll: poll [LEN].
 *
 * Both ends are in this program, and one thread serves both. The encoder and the decoder never
 * wait: what the socket does not take now stays in a buffer of this program. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <narrows.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "poll: %s: %s\n", what, why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The byte of the content at `at`. */
static unsigned char content(size_t at)
{
    return (unsigned char)("Narrows "[at % 8] + at / 4096 % 3);
}

struct sender {
    narrows_encoder *encoder;
    size_t at, len;
    /* Encoded bytes that the socket has not taken yet, and since when they wait. */
    unsigned char wire[1 << 16];
    narrows_output out;
    size_t written;
    uint64_t since_ns;
    int over;
};

/* Writes what the socket takes. Returns 0 when the whole stream has left. */
static int on_writable(struct sender *s, int fd)
{
    for (;;) {
        while (s->written < s->out.pos) {
            ssize_t n = write(fd, s->wire + s->written, s->out.pos - s->written);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return 1;
            if (n < 0)
                fail("write", "the peer is gone");
            s->written += (size_t)n;
        }
        if (s->over)
            return 0;
        /* The time that the socket took for these bytes says how fast the link is. */
        narrows_encoder_link_took(s->encoder, now_ns() - s->since_ns);
        unsigned char raw[20000];
        size_t n = s->len - s->at < sizeof raw ? s->len - s->at : sizeof raw;
        for (size_t i = 0; i < n; i++)
            raw[i] = content(s->at + i);
        narrows_input in = {raw, n, 0};
        s->out = (narrows_output){s->wire, sizeof s->wire, 0};
        s->written = 0;
        ptrdiff_t waits = narrows_encode(s->encoder, &in, &s->out, s->at + n == s->len ? NARROWS_END : NARROWS_CONTINUE);
        if (waits < 0)
            fail("encode", narrows_last_error());
        s->at += in.pos;
        s->over = waits == 0 && s->at == s->len;
        s->since_ns = now_ns();
    }
}

/* Reads and checks what has come. Returns 0 at the end of the stream. */
static int on_readable(narrows_decoder *decoder, int fd, size_t *received)
{
    static unsigned char wire[1 << 16], raw[1 << 16];
    ssize_t got = read(fd, wire, sizeof wire);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (got <= 0) {
        narrows_decoder_end(decoder);
        fail("read", got < 0 ? "the peer is gone" : narrows_last_error());
    }
    narrows_input in = {wire, (size_t)got, 0};
    for (;;) {
        narrows_output out = {raw, sizeof raw, 0};
        ptrdiff_t more = narrows_decode(decoder, &in, &out);
        if (more < 0)
            fail("decode", narrows_last_error());
        for (size_t i = 0; i < out.pos; i++)
            if (raw[i] != content((*received)++))
                fail("decode", "other bytes than were sent");
        if (more == 0)
            return 0;
        if (in.pos == in.size && out.pos < out.size)
            return 1;
    }
}

int main(int argc, char **argv)
{
    struct sender sender = {.len = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000};
    sender.encoder = narrows_encoder_new(NULL);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    int fds[2];
    if (sender.encoder == NULL || decoder == NULL)
        fail("new", narrows_last_error());
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        fail("socketpair", "no descriptors");
    for (int i = 0; i < 2; i++)
        fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
    sender.since_ns = now_ns();
    size_t received = 0;
    for (int sends = 1, receives = 1; receives;) {
        struct pollfd ready[2] = {{sends ? fds[0] : -1, POLLOUT, 0}, {fds[1], POLLIN, 0}};
        if (poll(ready, 2, 10000) == 0)
            fail("poll", "nothing for ten seconds");
        if (ready[0].revents)
            sends = on_writable(&sender, fds[0]);
        if (ready[1].revents)
            receives = on_readable(decoder, fds[1], &received);
    }
    narrows_totals totals;
    narrows_encoder_totals(sender.encoder, &totals);
    printf("%lu bytes, %lu on the link\n", (unsigned long)totals.raw_bytes, (unsigned long)totals.wire_bytes);
    narrows_encoder_free(sender.encoder);
    narrows_decoder_free(decoder);
    return received == sender.len ? 0 : 1;
}
