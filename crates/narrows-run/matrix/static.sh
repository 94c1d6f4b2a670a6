# needs: cc
# scenarios: echo other-user refused
# Statically linked, so no library can be preloaded; the server forks for each connection.
case $role in
server)
    cat >static.c <<'C'
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void copy(int from, int to) {
    static char part[65536];
    for (ssize_t n; (n = read(from, part, sizeof part)) > 0;)
        for (ssize_t at = 0, w; at < n; at += w)
            if ((w = write(to, part + at, n - at)) <= 0) exit(1);
}
int main(int n, char **a) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(a[3]))};
    inet_pton(AF_INET, a[2], &at.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (a[1][0] == 's') {
        signal(SIGCHLD, SIG_IGN);
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, (void *)&at, sizeof at) || listen(s, 100)) return perror("listen"), 1;
        for (int c; (c = accept(s, 0, 0)) >= 0; close(c))
            if (!fork()) { copy(c, c); return 0; }
        return 1;
    }
    if (connect(s, (void *)&at, sizeof at)) return puts(errno == ECONNREFUSED ? "refused" : strerror(errno)), 7;
    if (!fork()) { copy(0, s); shutdown(s, SHUT_WR); return 0; }
    copy(s, 1);
    return 0;
}
C
    cc -O1 -static -o static static.c || fail cc
    if [ $scenario = other-user ]; then
        serve_as_other $RUN ./static server "$ADDR" "$PORT" &
    else
        $RUN ./static server "$ADDR" "$PORT" &
    fi
    up "$PORT"
    ;;
client)
    case $scenario in
    echo)
        exits 0 $RUN ./static client "$ADDR" "$PORT" <"$DATA/big" >got
        same_file got "$DATA/big"
        ;;
    other-user)
        exits 0 as_other $RUN ./static client "$ADDR" "$PORT" <"$DATA/big" >got
        same_file got "$DATA/big"
        ;;
    refused) exits 7 $RUN ./static client "$ADDR" "$PORT2" </dev/null ;;
    esac
    ;;
esac
