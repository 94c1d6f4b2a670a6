/* Receives a file over TCP: receive PORT FILE. The other end is send.c, or `narrows send`. */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <narrows.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Accepts one connection on a port, which is printed; 0 is any free port. */
static int await(int port)
{
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM, 0), peer;
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_port = htons((unsigned short)port);
    name.sin_addr.s_addr = htonl(INADDR_ANY);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &len) != 0)
        return -1;
    printf("%d\n", ntohs(name.sin_port));
    fflush(stdout);
    peer = accept(fd, NULL, NULL);
    close(fd);
    return peer;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    narrows_stream_options options = {.struct_size = sizeof options, .flags = NARROWS_CLOSE_FD};
    ptrdiff_t n;
    if (argc != 3) {
        fprintf(stderr, "usage: receive PORT FILE\n");
        return 2;
    }
    int fd = await(atoi(argv[1]));
    FILE *file = fopen(argv[2], "wb");
    if (fd < 0 || file == NULL) {
        perror(fd < 0 ? argv[1] : argv[2]);
        return 1;
    }
    narrows_reader *reader = narrows_reader_open(fd, &options);
    if (reader == NULL) {
        fprintf(stderr, "receive: %s\n", narrows_last_error());
        return 1;
    }
    while ((n = narrows_read(reader, buffer, sizeof buffer)) > 0)
        if (fwrite(buffer, 1, (size_t)n, file) != (size_t)n)
            break;
    /* Closing confirms that the data is stored, so store it first. */
    if (fflush(file) != 0 || fsync(fileno(file)) != 0) {
        perror(argv[2]);
        narrows_reader_cancel(reader);
    }
    if (narrows_reader_close(reader) != NARROWS_OK || n != 0) {
        fprintf(stderr, "receive: %s\n", narrows_last_error());
        return 1;
    }
    fclose(file);
    return 0;
}
