# needs: cc file:/usr/include/event2/http.h
# scenarios: get post refused
# evhttp at both ends: files by sendfile, bodies from memory, thirty connections in one thread.
case $role in
server)
    if [ ! -e "$KEEP/libevent.done" ]; then
        mkdir -p "$KEEP/libevent"
        cat >"$KEEP/libevent/main.c" <<'C'
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct event_base *base;
static const char *path;
static char *data;
static size_t size;
static int left, right;

static void answer(struct evhttp_request *request, void *file) {
    struct evbuffer *out = evbuffer_new();
    if (file) evbuffer_add_file(out, open(path, O_RDONLY), 0, size);
    else evbuffer_add_buffer(out, evhttp_request_get_input_buffer(request));
    evhttp_send_reply(request, 200, "OK", out);
    evbuffer_free(out);
}

static void done(struct evhttp_request *request, void *wanted) {
    if (!request || evhttp_request_get_response_code(request) != 200) {
        puts("no answer");
    } else {
        struct evbuffer *in = evhttp_request_get_input_buffer(request);
        size_t n = evbuffer_get_length(in);
        right += n == (size_t)wanted && !memcmp(evbuffer_pullup(in, -1), data, n);
    }
    if (--left == 0) event_base_loopbreak(base);
}

int main(int n, char **a) {
    (void)n;
    struct stat about;
    path = a[4];
    if (stat(path, &about)) return 1;
    size = about.st_size;
    base = event_base_new();
    if (a[1][0] == 's') {
        struct evhttp *http = evhttp_new(base);
        evhttp_set_max_body_size(http, 1 << 28);
        evhttp_set_cb(http, "/file", answer, "file");
        evhttp_set_cb(http, "/echo", answer, NULL);
        if (evhttp_bind_socket(http, a[2], atoi(a[3]))) return 1;
        return event_base_dispatch(base);
    }
    data = malloc(size);
    FILE *file = fopen(path, "r");
    if (fread(data, 1, size, file) != size) return 1;
    int post = a[1][0] == 'p', count = a[1][0] == 'r' ? 1 : post ? 30 : 4;
    for (int i = 0; i < count; i++) {
        struct evhttp_connection *to = evhttp_connection_base_new(base, NULL, a[2], atoi(a[3]));
        size_t len = post ? 200000 + i * 100 : size;
        struct evhttp_request *request = evhttp_request_new(done, (void *)len);
        evhttp_add_header(evhttp_request_get_output_headers(request), "Host", "lab");
        if (post) evbuffer_add(evhttp_request_get_output_buffer(request), data, len);
        evhttp_make_request(to, request, post ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, post ? "/echo" : "/file");
        left++;
    }
    event_base_dispatch(base);
    printf("%d right\n", right);
    return 0;
}
C
        cc -O1 -o "$KEEP/libevent/lab" "$KEEP/libevent/main.c" -levent 2>log || fail "cc: $(head -3 log)"
        : >"$KEEP/libevent.done"
    fi
    $RUN "$KEEP/libevent/lab" serve "$ADDR" "$PORT" "$DATA/big" &
    up "$PORT"
    ;;
client)
    at=$PORT
    [ $scenario = refused ] && at=$PORT2
    exits 0 $RUN "$KEEP/libevent/lab" $scenario "$ADDR" "$at" "$DATA/big"
    ;;
esac
