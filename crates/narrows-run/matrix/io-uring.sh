# needs: cc file:/usr/include/liburing.h
# scenarios: data connect registered
# libc connects and a ring carries the bytes; or a ring connects, or the socket is registered with a
# ring before it is connected: then the connection stays plain.
case $role in
server)
    cat >ring.c <<'C'
#include <arpa/inet.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static struct io_uring ring;
static int wait_one(void) {
    struct io_uring_cqe *done;
    io_uring_submit(&ring);
    if (io_uring_wait_cqe(&ring, &done)) return -1;
    int result = done->res;
    io_uring_cqe_seen(&ring, done);
    return result;
}
int main(int n, char **a) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(a[2]))};
    inet_pton(AF_INET, a[1], &at.sin_addr);
    if (io_uring_queue_init(8, &ring, 0)) { puts("no ring"); return 0; }
    int s = socket(AF_INET, SOCK_STREAM, 0), error;
    int number = s, flags = 0;
    if (n > 3 && a[3][0] == 'h') {
        if (io_uring_register_files(&ring, &s, 1)) { puts("no place"); return 1; }
        number = 0;
        flags = IOSQE_FIXED_FILE;
    }
    if (n > 3 && a[3][0] == 'c') {
        io_uring_prep_connect(io_uring_get_sqe(&ring), s, (void *)&at, sizeof at);
        error = wait_one();
    } else {
        error = connect(s, (void *)&at, sizeof at);
    }
    printf("connect %d\n", error);
    static char out[100000], in[100000];
    long wrong = 0;
    for (int i = 0; i < 50; i++) {
        memset(out, i + 1, sizeof out);
        for (size_t sent = 0, got = 0; got < sizeof in;) {
            if (sent < sizeof out) {
                struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
                io_uring_prep_send(entry, number, out + sent, sizeof out - sent, 0);
                io_uring_sqe_set_flags(entry, flags);
                int r = wait_one();
                if (r <= 0) { printf("send %d\n", r); return 1; }
                sent += r;
            }
            struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
            io_uring_prep_recv(entry, number, in + got, sizeof in - got, 0);
            io_uring_sqe_set_flags(entry, flags);
            int r = wait_one();
            if (r <= 0) { printf("recv %d\n", r); return 1; }
            got += r;
        }
        wrong += memcmp(out, in, sizeof out) != 0;
    }
    printf("%ld wrong\n", wrong);
    return wrong != 0;
}
C
    cc -O1 -o ring ring.c -luring || fail cc
    cat >echo.py <<'PY'
import os, socket, threading
def answer(s):
    while part := s.recv(1 << 16):
        s.sendall(part)
listener = socket.create_server((os.environ["ADDR"], int(os.environ["PORT"])))
while True:
    threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()
PY
    $RUN python3 echo.py &
    up "$PORT"
    ;;
client)
    by_ring=
    [ $scenario = connect ] && by_ring=connects
    [ $scenario = registered ] && by_ring=holds
    exits 0 $RUN ./ring "$ADDR" "$PORT" $by_ring
    ;;
esac
