/* A statically linked program for `narrows run`: no library can be loaded into it. Its argument says what it does;
   it prints "fine", or what failed. Servers have the address 127.0.0.1, clients 127.0.0.2. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static struct sockaddr_in at(const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &a.sin_addr);
    return a;
}

static struct sockaddr_in server;

static int listener(void) {
    int l = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof server;
    server = at("127.0.0.1", 0);
    MUST(bind(l, (void *)&server, sizeof server) == 0);
    MUST(listen(l, 16) == 0);
    MUST(getsockname(l, (void *)&server, &len) == 0);
    return l;
}

static int client(int flags) {
    int c = socket(AF_INET, SOCK_STREAM | flags, 0);
    struct sockaddr_in own = at("127.0.0.2", 0);
    MUST(bind(c, (void *)&own, sizeof own) == 0);
    return c;
}

static int joined(int c) { return connect(c, (void *)&server, sizeof server); }

static int ready(int fd, int events, int ms) {
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, ms) == 1 ? p.revents : 0;
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void are_peers(int a, int b) {
    struct sockaddr_in x = {0}, y = {0};
    socklen_t xl = sizeof x, yl = sizeof y;
    MUST(getpeername(a, (void *)&x, &xl) == 0 && getsockname(b, (void *)&y, &yl) == 0);
    MUST(xl == sizeof x && yl == sizeof y && memcmp(&x, &y, sizeof x) == 0);
}

/* Sends or receives bytes that depend on position and seed; returns their sum. */
static uint64_t transfer(int fd, long len, uint32_t seed, int sends) {
    static unsigned char buffer[60000];
    uint64_t sum = seed;
    while (len > 0) {
        long part = len < (long)sizeof buffer ? len : (long)sizeof buffer;
        if (sends) {
            for (long i = 0; i < part; i++) {
                seed = seed * 1664525 + 1013904223;
                buffer[i] = seed >> 24;
            }
            for (long sent = 0; sent < part;) {
                long n = write(fd, buffer + sent, part - sent);
                MUST(n > 0);
                sent += n;
            }
        } else {
            part = read(fd, buffer, part);
            MUST(part > 0);
        }
        for (long i = 0; i < part; i++) sum = sum * 31 + buffer[i];
        len -= part;
    }
    return sum;
}

#define LEN (5L << 20)

static void serve(int l, int connections) {
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        int s = accept(l, (void *)&peer, &len);
        MUST(s >= 0 && len == sizeof peer && peer.sin_addr.s_addr == inet_addr("127.0.0.2"));
        if (fork() == 0) {
            close(l);
            uint64_t sum = transfer(s, LEN, 1, 0);
            char rest;
            MUST(read(s, &rest, 1) == 0);
            MUST(write(s, &sum, sizeof sum) == sizeof sum);
            sum = transfer(s, LEN, 2, 1);
            MUST(write(s, &sum, sizeof sum) == sizeof sum);
            _exit(0);
        }
        close(s);
    }
    for (int i = 0, status; i < connections; i++) MUST(wait(&status) > 0 && status == 0);
    _exit(0);
}

static void talk(int c) {
    uint64_t own, theirs;
    own = transfer(c, LEN, 1, 1);
    MUST(shutdown(c, SHUT_WR) == 0);
    MUST(read(c, &theirs, sizeof theirs) == sizeof theirs && own == theirs);
    own = transfer(c, LEN, 2, 0);
    MUST(recv(c, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs && own == theirs);
    MUST(read(c, &theirs, 1) == 0);
    close(c);
}

static void forking(void) {
    int l = listener(), status;
    pid_t child = fork();
    if (child == 0) serve(l, 4);
    close(l);
    for (int i = 0; i < 4; i++) {
        int c = client(0);
        MUST(joined(c) == 0);
        MUST(fcntl(c, F_GETFL) == O_RDWR && fcntl(c, F_GETFD) == 0);
        talk(c);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

static void polling(void) {
    int l = listener();
    int c = client(SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(fcntl(l, F_SETFL, O_NONBLOCK) == 0);
    MUST(accept(l, 0, 0) == -1 && errno == EAGAIN);
    MUST(joined(c) == -1 && errno == EINPROGRESS);
    MUST(ready(c, POLLOUT, 5000) == POLLOUT);
    MUST(option(c, SOL_SOCKET, SO_ERROR) == 0);
    MUST(fcntl(c, F_GETFD) == FD_CLOEXEC && fcntl(c, F_GETFL) == (O_RDWR | O_NONBLOCK));
    MUST(ready(l, POLLIN, 5000) == POLLIN);
    int s = accept4(l, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(s >= 0 && fcntl(s, F_GETFD) == FD_CLOEXEC && fcntl(s, F_GETFL) == (O_RDWR | O_NONBLOCK));
    are_peers(c, s);
    are_peers(s, c);
    MUST(joined(c) == 0);
    MUST(joined(c) == -1 && errno == EISCONN);
    char b = 0;
    MUST(read(s, &b, 1) == -1 && errno == EAGAIN);
    MUST(write(c, "x", 1) == 1 && ready(s, POLLIN, 5000) && read(s, &b, 1) == 1 && b == 'x');
    close(s);
    MUST(ready(c, POLLIN, 5000) && read(c, &b, 1) == 0);
}

static void refused(void) {
    close(listener());
    int c = client(0);
    MUST(joined(c) == -1 && errno == ECONNREFUSED);
    close(c);
    c = client(SOCK_NONBLOCK);
    int first = joined(c);
    MUST(first == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    if (errno == EINPROGRESS) {
        MUST(ready(c, POLLOUT, 5000) & POLLHUP);
        MUST(option(c, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
        MUST(option(c, SOL_SOCKET, SO_ERROR) == 0);
    }
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    MUST(getpeername(c, (void *)&peer, &len) == -1 && errno == ENOTCONN);
    /* The same socket again, to a listening server. */
    int l = listener();
    int again = joined(c);
    if (again == -1 && errno == ECONNABORTED) again = joined(c);
    MUST(again == -1 && errno == EINPROGRESS && ready(c, POLLOUT, 5000) == POLLOUT);
    int s = accept(l, 0, 0);
    are_peers(c, s);
}

static void options(void) {
    int l = listener(), c = client(0), on = 1;
    MUST(joined(c) == 0);
    int s = accept(l, 0, 0);
    int both[] = {c, s};
    for (int i = 0; i < 2; i++) {
        MUST(option(both[i], SOL_SOCKET, SO_DOMAIN) == AF_INET && option(both[i], SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
        MUST(setsockopt(both[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        MUST(option(both[i], IPPROTO_TCP, TCP_NODELAY) == 1);
        MUST(setsockopt(both[i], SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
        MUST(option(both[i], SOL_SOCKET, SO_KEEPALIVE) == 1);
        MUST(option(both[i], IPPROTO_IP, IP_TTL) > 0);
        MUST(setsockopt(both[i], IPPROTO_TCP, 999, &on, sizeof on) == -1 && errno == ENOPROTOOPT);
        MUST(syscall(SYS_getsockopt, both[i], IPPROTO_TCP, TCP_NODELAY, 8, 8) == -1 && errno == EFAULT);
    }
    int queue = -1;
    MUST(write(c, "x", 1) == 1 && read(s, &on, 1) == 1);
    for (int i = 0; i < 500 && queue != 0; i++) {
        MUST(ioctl(c, TIOCOUTQ, &queue) == 0);
        usleep(2000);
    }
    MUST(queue == 0);
    MUST(recv(c, &on, 1, MSG_ERRQUEUE | MSG_DONTWAIT) == -1 && errno == EAGAIN);
    /* The urgent byte arrives, and no other byte is lost. */
    char got[8] = {0};
    MUST(setsockopt(s, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    MUST(send(c, "abC", 3, MSG_OOB) == 3 && send(c, "def", 3, 0) == 3);
    for (int n = 0; n < 6;) {
        int more = read(s, got + n, 6 - n);
        MUST(more > 0);
        n += more;
    }
    MUST(strcmp(got, "abCdef") == 0);
    /* Closing with SO_LINGER and zero time is a reset for the peer. */
    struct linger now = {1, 0};
    MUST(setsockopt(c, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    close(c);
    MUST(read(s, got, 1) == -1 && errno == ECONNRESET);
}

static volatile int rings;
static void ring(int n) { (void)n; rings++; }

/* Handlers run while calls wait; the interrupted calls restart or not, as the handlers want. */
static void signals(void) {
    struct sigaction action = {.sa_handler = ring};
    struct itimerval soon = {.it_value = {0, 100000}};
    int l = listener();
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    MUST(accept(l, 0, 0) == -1 && errno == EINTR && rings == 1);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(400000);
        int c = client(0);
        MUST(joined(c) == 0 && write(c, "x", 1) == 1);
        _exit(0);
    }
    char b;
    int s = accept(l, 0, 0);
    MUST(s >= 0 && rings == 2 && read(s, &b, 1) == 1);
    MUST(waitpid(child, 0, 0) == child);
    struct timeval limit = {0, 100000};
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    MUST(accept(l, 0, 0) == -1 && errno == EAGAIN);
}

/* The end of a child is signalled to the thread that forked, not to the first one, which continues to accept. */
static void *forker(void *first) {
    struct sockaddr_in other = server;
    int l = listener();
    if (fork() == 0) {
        usleep(100000);
        _exit(0);
    }
    MUST(accept(l, 0, 0) == -1 && errno == EINTR && rings == 1);
    int c = client(0);
    MUST(connect(c, (void *)&other, sizeof other) == 0 && write(c, "x", 1) == 1);
    return first;
}

static void threads(void) {
    struct sigaction action = {.sa_handler = ring};
    sigaction(SIGCHLD, &action, 0);
    int l = listener();
    pthread_t thread;
    char b;
    MUST(pthread_create(&thread, 0, forker, 0) == 0);
    int s = accept(l, 0, 0);
    MUST(s >= 0 && read(s, &b, 1) == 1 && pthread_join(thread, 0) == 0);
}

/* Another holder of the socket that is not a child of the connecting thread: it writes after the connect. */
static int common, forked[2], written[2];

static void tell(int *way) { MUST(write(way[1], "", 1) == 1); }

static void hear(int *way) {
    char b;
    MUST(read(way[0], &b, 1) == 1);
}

static void writer(void) {
    hear(written);
    MUST(write(common, "b", 1) == 1);
    _exit(0);
}

static void *parent(void *all) {
    if (fork() == 0) writer();
    tell(forked);
    MUST(wait(0) > 0);
    return all;
}

static void hears_both(int l) {
    char b[2];
    int s = accept(l, 0, 0);
    MUST(s >= 0 && recv(s, b, 2, MSG_WAITALL) == 2 && b[0] == 'a' && b[1] == 'b');
    close(s);
}

static void shared(void) {
    int l = listener();
    pthread_t thread;
    MUST(pipe(forked) == 0 && pipe(written) == 0);
    common = client(0);
    MUST(pthread_create(&thread, 0, parent, 0) == 0);
    hear(forked);
    MUST(joined(common) == 0 && write(common, "a", 1) == 1);
    tell(written);
    hears_both(l);
    MUST(pthread_join(thread, 0) == 0);
    close(common);
    common = client(0);
    if (fork() == 0) {
        hear(forked);
        MUST(joined(common) == 0 && write(common, "a", 1) == 1);
        tell(written);
        _exit(0);
    }
    if (fork() == 0) writer();
    /* The other process connects while this one closes its own. */
    tell(forked);
    close(common);
    hears_both(l);
    MUST(wait(0) > 0 && wait(0) > 0);
}

/* A connection under way: the server's queue is full, so it does not answer. */
static void slow(void) {
    struct sigaction action = {.sa_handler = ring};
    struct itimerval soon = {.it_value = {0, 100000}};
    int l = listener();
    MUST(listen(l, 0) == 0);
    for (int i = 0; i < 4; i++) joined(client(SOCK_NONBLOCK));
    usleep(100000);
    pid_t child = fork();
    if (child == 0) {
        usleep(600000);
        for (;;) {
            int s = accept(l, 0, 0);
            MUST(s >= 0 && write(s, "hello", 5) == 5);
        }
    }
    int c = client(0);
    struct timeval limit = {0, 100000};
    MUST(setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    MUST(joined(c) == -1 && errno == EINPROGRESS);
    close(c);
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    c = client(0);
    MUST(joined(c) == -1 && errno == EINTR && rings == 1);
    MUST(fcntl(c, F_GETFL) == O_RDWR);
    /* The attempt continues. */
    char b[5];
    MUST(joined(c) == 0);
    MUST(recv(c, b, 5, MSG_WAITALL) == 5 && memcmp(b, "hello", 5) == 0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
}

/* These stay plain, and work. */
static void elsewhere(void) {
    int l = listener(), c = client(SOCK_NONBLOCK), e = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 7};
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, c, &event) == 0);
    MUST(joined(c) == -1 && errno == EINPROGRESS);
    MUST(epoll_wait(e, &event, 1, 5000) == 1 && event.data.u64 == 7 && event.events == EPOLLOUT);
    event.events = EPOLLIN;
    MUST(epoll_ctl(e, EPOLL_CTL_MOD, c, &event) == 0);
    int s = accept(l, 0, 0);
    MUST(write(s, "x", 1) == 1 && epoll_wait(e, &event, 1, 5000) == 1 && event.events == EPOLLIN);
    are_peers(c, s);
    c = client(0);
    int twin = dup(c);
    char b[4] = {0};
    MUST(joined(c) == 0 && write(twin, "abc", 3) == 3);
    s = accept(l, 0, 0);
    MUST(read(s, b, 3) == 3 && strcmp(b, "abc") == 0);
    /* Shared with another process since a fork. */
    c = client(0);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    MUST(joined(c) == 0 && write(c, "abc", 3) == 3);
    s = accept(l, 0, 0);
    MUST(read(s, b, 3) == 3);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
}

/* At the descriptor limit: a connection that cannot be accepted stays in the queue, where polling sees it. */
static void full(void) {
    int l = listener(), c = client(0), spare = dup(0);
    struct rlimit limit;
    char b;
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0 && joined(c) == 0);
    rlim_t before = limit.rlim_cur;
    close(spare);
    limit.rlim_cur = spare;
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < 3; i++) MUST(ready(l, POLLIN, 5000) == POLLIN && accept(l, 0, 0) == -1 && errno == EMFILE);
    limit.rlim_cur = before;
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0 && ready(l, POLLIN, 5000) == POLLIN);
    int s = accept(l, 0, 0);
    are_peers(c, s);
    MUST(write(s, "x", 1) == 1 && read(c, &b, 1) == 1);
}

/* The supervisor must not do for a program what the program has forbidden itself. */
static void restricted(void) {
    struct { uint64_t files, net; } rules = {0, 2};
    int l = listener(), c = client(0);
    /* Connecting with TCP, since version 4 of Landlock. */
    if (syscall(444, 0, 0, 1) < 4) return;
    int set = syscall(444, &rules, sizeof rules, 0);
    MUST(set >= 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(446, set, 0) == 0);
    MUST(joined(c) == -1 && errno == EACCES);
    close(l);
}

/* A process killed while it waits releases its port. */
static void killed(void) {
    int l = listener(), status;
    pid_t child = fork();
    if (child == 0) {
        accept(l, 0, 0);
        _exit(0);
    }
    close(l);
    usleep(100000);
    kill(child, SIGKILL);
    MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    for (int i = 0; i < 1000; i++) {
        l = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(l, (void *)&server, sizeof server) == 0) return;
        close(l);
        usleep(1000);
    }
    MUST(!"the port is still taken");
}

/* Prints "ready", waits until the supervisor is killed, and checks that calls still work. */
static void orphaned(void) {
    int l = listener(), c = client(0);
    char b;
    MUST(joined(c) == 0);
    int s = accept(l, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        /* During a call that the supervisor was asked about when it died. */
        close(c);
        close(s);
        int late = accept(l, 0, 0);
        MUST(late >= 0 && read(late, &b, 1) == 1 && write(late, "y", 1) == 1);
        _exit(0);
    }
    puts("ready");
    fflush(stdout);
    MUST(read(c, &b, 1) == -1 && errno == ECONNRESET);
    MUST(read(s, &b, 1) == -1 && errno == ECONNRESET);
    c = client(0);
    MUST(joined(c) == 0 && option(c, IPPROTO_TCP, TCP_NODELAY) == 0);
    MUST(write(c, "x", 1) == 1 && read(c, &b, 1) == 1 && b == 'y');
    MUST(waitpid(child, 0, 0) == child);
}

int main(int count, char **words) {
    static const struct { const char *name; void (*run)(void); } ALL[] = {
        {"forking", forking}, {"polling", polling}, {"refused", refused}, {"options", options}, {"signals", signals}, {"threads", threads}, {"shared", shared},
        {"slow", slow}, {"elsewhere", elsewhere}, {"full", full}, {"restricted", restricted}, {"killed", killed}, {"orphaned", orphaned},
    };
    setvbuf(stdout, 0, _IOLBF, 0);
    alarm(0);
    for (unsigned i = 0; count > 1 && i < sizeof ALL / sizeof *ALL; i++) {
        if (strcmp(ALL[i].name, words[1]) == 0) {
            ALL[i].run();
            puts("fine");
            return 0;
        }
    }
    puts("what?");
    return 2;
}
