/* Sends a file over TCP: send HOST PORT FILE. The other end is receive.c, or `narrows recv`. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <narrows.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connects; returns -1 after printing an error. */
static int dial(const char *host, const char *port)
{
    struct addrinfo hints, *found;
    int fd = -1, error;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    error = getaddrinfo(host, port, &hints, &found);
    if (error != 0) {
        fprintf(stderr, "send: %s port %s: %s\n", host, port, gai_strerror(error));
        return -1;
    }
    for (struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd < 0) {
            error = errno;
        } else if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0)
        fprintf(stderr, "send: %s port %s: %s\n", host, port, strerror(error));
    return fd;
}

static int fail(const char *what)
{
    fprintf(stderr, "send: %s: %s\n", what, narrows_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    narrows_stream_options options = {.struct_size = sizeof options, .flags = NARROWS_CLOSE_FD};
    if (argc != 4) {
        fprintf(stderr, "usage: send HOST PORT FILE\n");
        return 2;
    }
    FILE *file = fopen(argv[3], "rb");
    if (file == NULL) {
        perror(argv[3]);
        return 1;
    }
    int fd = dial(argv[1], argv[2]);
    if (fd < 0)
        return 1;
    narrows_writer *writer = narrows_writer_open(fd, &options);
    if (writer == NULL)
        return fail("open");
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
        if (narrows_write(writer, buffer, n) < 0)
            return fail("write");
    if (ferror(file)) {
        perror(argv[3]);
        narrows_writer_cancel(writer); /* or the receiver would take the part for the whole file */
    }
    if (narrows_writer_close(writer) != NARROWS_OK)
        return fail("close");
    fclose(file);
    return 0;
}
