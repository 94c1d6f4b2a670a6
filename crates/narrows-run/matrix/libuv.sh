# needs: cc file:/usr/include/uv.h
# scenarios: echo refused
# libuv without Node at both ends: forty connections in one loop, half closes.
case $role in
server)
    if [ ! -e "$KEEP/libuv.done" ]; then
        mkdir -p "$KEEP/libuv"
        cat >"$KEEP/libuv/main.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

static uv_loop_t *loop;
static char *data;
static int right;

struct client {
    uv_tcp_t tcp;
    size_t got, wanted;
    int same;
};

static void room(uv_handle_t *handle, size_t hint, uv_buf_t *buffer) {
    (void)handle, (void)hint;
    *buffer = uv_buf_init(malloc(65536), 65536);
}
static void freed(uv_handle_t *handle) { free(handle); }
static void written(uv_write_t *write, int status) { (void)status; free(write->data); free(write); }
static void shut(uv_shutdown_t *request, int status) { (void)status; uv_close((void *)request->handle, freed); free(request); }

static void echo(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    if (n > 0) {
        uv_write_t *write = malloc(sizeof *write);
        write->data = buffer->base;
        uv_buf_t part = uv_buf_init(buffer->base, n);
        uv_write(write, stream, &part, 1, written);
        return;
    }
    free(buffer->base);
    if (n == UV_EOF) uv_shutdown(malloc(sizeof(uv_shutdown_t)), stream, shut);
    else if (n < 0) uv_close((void *)stream, freed);
}
static void come(uv_stream_t *listener, int status) {
    uv_tcp_t *tcp = malloc(sizeof *tcp);
    uv_tcp_init(loop, tcp);
    if (!status && !uv_accept(listener, (void *)tcp)) uv_read_start((void *)tcp, room, echo);
}

static void compare(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    struct client *client = (void *)stream;
    if (n > 0) {
        client->same &= client->got + n <= client->wanted && !memcmp(data + client->got, buffer->base, n);
        client->got += n;
    } else if (n < 0) {
        int whole = n == UV_EOF && client->same && client->got == client->wanted;
        if (!whole) printf("%s after %zu\n", uv_err_name(n), client->got);
        right += whole;
        uv_close((void *)stream, freed);
    }
    free(buffer->base);
}
static void sent(uv_write_t *write, int status) { (void)status; free(write); }
static void ended(uv_shutdown_t *request, int status) { (void)status; free(request); }
static void connected(uv_connect_t *connect, int status) {
    struct client *client = (void *)connect->handle;
    free(connect);
    if (status) {
        printf("connect: %s\n", uv_err_name(status));
        uv_close((void *)client, freed);
        return;
    }
    uv_buf_t all = uv_buf_init(data, client->wanted);
    uv_write(malloc(sizeof(uv_write_t)), (void *)client, &all, 1, sent);
    uv_shutdown(malloc(sizeof(uv_shutdown_t)), (void *)client, ended);
    uv_read_start((void *)client, room, compare);
}

int main(int n, char **a) {
    (void)n;
    loop = uv_default_loop();
    struct sockaddr_in at;
    uv_ip4_addr(a[2], atoi(a[3]), &at);
    if (a[1][0] == 's') {
        uv_tcp_t listener;
        uv_tcp_init(loop, &listener);
        uv_tcp_bind(&listener, (void *)&at, 0);
        if (uv_listen((void *)&listener, 200, come)) return 1;
        return uv_run(loop, UV_RUN_DEFAULT);
    }
    size_t size = 5000000;
    data = malloc(size);
    FILE *file = fopen(a[4], "r");
    size = fread(data, 1, size, file);
    for (int i = 0; i < (a[1][0] == 'r' ? 1 : 40); i++) {
        struct client *client = calloc(1, sizeof *client);
        client->same = 1;
        client->wanted = i < 3 ? size : 100000 + i * 999;
        uv_tcp_init(loop, &client->tcp);
        uv_tcp_nodelay(&client->tcp, 1);
        uv_tcp_keepalive(&client->tcp, 1, 60);
        uv_tcp_connect(malloc(sizeof(uv_connect_t)), &client->tcp, (void *)&at, connected);
    }
    uv_run(loop, UV_RUN_DEFAULT);
    printf("%d right\n", right);
    return 0;
}
C
        cc -O1 -o "$KEEP/libuv/lab" "$KEEP/libuv/main.c" -luv 2>log || fail "cc: $(head -3 log)"
        : >"$KEEP/libuv.done"
    fi
    $RUN "$KEEP/libuv/lab" serve "$ADDR" "$PORT" &
    up "$PORT"
    ;;
client)
    at=$PORT
    [ $scenario = refused ] && at=$PORT2
    exits 0 $RUN "$KEEP/libuv/lab" $scenario "$ADDR" "$at" "$DATA/big"
    ;;
esac
