/* Threads that are cancelled while they wait in calls that the library hooks. Prints "fine". */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(what) if (!(what)) { printf("%d: ", __LINE__); fflush(stdout); perror(#what); exit(1); }

static struct sockaddr_in server = {.sin_family = AF_INET};
static int listener, full, ends[2];
static int cleaned;
static volatile int begun;

static void clean(void *nothing) {
    (void)nothing;
    cleaned++;
}

static void *waits(void *which) {
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct sockaddr_in there = server;
    socklen_t len = sizeof there;
    pthread_cleanup_push(clean, NULL);
    begun = 1;
    switch ((long)which) {
    case 0: accept(listener, NULL, NULL); break;
    case 1: accept4(listener, NULL, NULL, SOCK_CLOEXEC); break;
    case 2: recv(ends[0], &byte, 1, 0); break;
    case 3: recvfrom(ends[0], &byte, 1, 0, (void *)&there, &len); break;
    case 4: recvmsg(ends[0], &message, 0); break;
    case 5: recv(ends[0], NULL, 1, MSG_TRUNC); break;
    case 6:
        getsockname(full, (void *)&there, &len);
        connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&there, sizeof there);
        break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof server;
    MUST((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    MUST(bind(listener, (void *)&server, sizeof server) == 0 && listen(listener, 8) == 0);
    struct sockaddr_in here;
    MUST(getsockname(listener, (void *)&here, &len) == 0);
    MUST((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (void *)&here, sizeof here) == 0);
    MUST((ends[1] = accept(listener, NULL, NULL)) >= 0);
    /* Connecting to this one waits: its queue is full. */
    MUST((full = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    MUST(bind(full, (void *)&server, sizeof server) == 0 && listen(full, 0) == 0);
    MUST(getsockname(full, (void *)&here, &len) == 0);
    int first = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(first, (void *)&here, sizeof here) == 0);
    for (long which = 0; which <= 6; which++) {
        pthread_t thread;
        void *result;
        begun = 0;
        MUST(pthread_create(&thread, NULL, waits, (void *)which) == 0);
        while (!begun) usleep(1000);
        usleep(20000);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        if (result != PTHREAD_CANCELED || cleaned != which + 1) {
            printf("call %ld was not cancelled\n", which);
            return 1;
        }
    }
    puts("fine");
    return 0;
}
