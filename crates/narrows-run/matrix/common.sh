# Common beginning of every script in this folder.
#
# A script is run twice for a cell: as `server SCENARIO` on one host and as `client SCENARIO` on the
# other, both in $DIR. Each program whose connections are tested is prefixed with $RUN: nothing, or
# `narrows run ...`. The client must print the same in both cases.
#   $ADDR $PORT $PORT2 $PORT3   address and ports of servers
#   $DATA                       files `small`, `big` (of $BIG_LEN bytes), `many/1` to `many/64`, and
#                               `sparse`, longer than all buffers
#   $KEEP                       a folder shared by all cells of a run, for results that take long
set -u
role=$1
scenario=$2
export LC_ALL=C
# The runner ends the whole group. Each script waits for its children, so that no zombies are left.
trap 'wait; exit 143' TERM

# Descriptor 3 is the transcript, wherever the output of a program goes.
exec 3>&1

fail() {
    echo "FAILED: $*" >&3
    exit 1
}

# WANTED GOT WHAT
same() {
    [ "$1" = "$2" ] || fail "$3: '$2' instead of '$1'"
    echo "$3: right" >&3
}

# STATUS COMMAND...: the program's own exit status.
exits() {
    wanted=$1
    shift
    "$@"
    same "$wanted" "$?" "status $wanted"
}

sum() {
    sha256sum | cut -c1-32
}

# FILE WANTED-FILE
same_file() {
    [ -f "$1" ] || fail "there is no $1"
    same "$(sum <"$2")" "$(sum <"$1")" "${2##*/}"
}

now() {
    date +%s.%N
}

# BEGUN: reports the measured time, if it is not the client's from start to end.
elapsed() {
    awk -v begun="$1" -v now="$(now)" 'BEGIN { printf "figure seconds %.4f\n", now - begun }'
}

# PORT...: waits until something listens there.
await() {
    for port; do
        hex=$(printf '%04X' "$port")
        turns=0
        until grep -q "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F:]* 0A " /proc/self/net/tcp /proc/self/net/tcp6; do
            turns=$((turns + 1))
            [ $turns -lt 400 ] || fail "nothing listens at port $port"
            sleep 0.05
        done
    done
}

# FILE: waits until it exists.
await_file() {
    turns=0
    until [ -e "$1" ]; do
        turns=$((turns + 1))
        [ $turns -lt 400 ] || fail "$1 does not come"
        sleep 0.05
    done
}

# PORT...: waits for the server, then lets the client start. The runner ends both.
up() {
    await "$@"
    : >ready
    wait
}

# Runs a program that refuses root as another user, who must own its data.
as_other() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"
    else
        "$@"
    fi
}

# As as_other, but in the background and without a shell in between.
serve_as_other() {
    if [ "$(id -u)" = 0 ]; then
        exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"
    else
        exec "$@"
    fi
}

theirs() {
    if [ "$(id -u)" = 0 ]; then chown -R nobody:nogroup "$@"; fi
}

# --- scenarios of every web server; the client is curl ---

web() {
    at=http://$ADDR:$PORT
    case $scenario in
    small)
        exits 0 $RUN curl -sS -o got "$at/small"
        same_file got "$DATA/small"
        ;;
    big)
        exits 0 $RUN curl -sS -o got "$at/big"
        same_file got "$DATA/big"
        ;;
    many)
        # One connection for all, then eight at a time.
        exits 0 $RUN curl -sS -o "one.#1" "$at/many/[1-64]"
        exits 0 $RUN curl -sS -Z --parallel-max 8 --parallel-immediate -o "par.#1" "$at/many/[1-64]"
        for i in $(seq 64); do
            cmp -s "one.$i" "$DATA/many/$i" && cmp -s "par.$i" "$DATA/many/$i" || fail "file $i differs"
        done
        echo "64 files twice: right"
        ;;
    upload)
        # The server answers with the hash of the received data.
        exits 0 $RUN curl -sS -H Expect: -H Content-Type:application/octet-stream --data-binary "@$DATA/big" -o got "$at/upload"
        same "$(sha256sum <"$DATA/big" | cut -c1-64)" "$(cat got)" "big"
        ;;
    refused)
        exits 7 $RUN curl -sS "http://$ADDR:$PORT2/small"
        ;;
    killed)
        # A client that is killed during a transfer does not harm the server.
        $RUN curl -sS --limit-rate 1M -o got "$at/sparse" &
        turns=0
        until [ -s got ]; do
            turns=$((turns + 1))
            [ $turns -lt 400 ] || fail "nothing comes"
            sleep 0.02
        done
        kill -9 $!
        wait $!
        same 137 $? "killed"
        exits 0 $RUN curl -sS -o got "$at/small"
        same_file got "$DATA/small"
        ;;
    server-killed)
        # Paused during the transfer while the server dies: data in flight arrives, then an early
        # end.
        $RUN curl -sS --limit-rate 4M -m 30 -o got "$at/sparse" &
        turns=0
        until [ -s got ]; do
            turns=$((turns + 1))
            [ $turns -lt 400 ] || fail "nothing comes"
            sleep 0.02
        done
        kill -9 "$(cat server.pid)"
        # 18: fewer bytes than announced; 56: reset. Which one depends on unread data at the server.
        wait $!
        case $? in 18 | 56) echo "cut off: right" ;; *) fail "status $?" ;; esac
        ;;
    *) fail "no scenario $scenario" ;;
    esac
}

# --- servers used by several scripts ---

# MODULE: Apache with this multi-processing module, serving the files of $DATA.
serve_apache() {
    modules=/usr/lib/apache2/modules
    cat >httpd.conf <<CONF
ServerRoot $DIR
ServerName lab
PidFile $DIR/httpd.pid
Mutex file:$DIR
ErrorLog $DIR/error.log
Listen $ADDR:$PORT
LoadModule mpm_$1_module $modules/mod_mpm_$1.so
LoadModule authz_core_module $modules/mod_authz_core.so
DocumentRoot $DATA
<Directory />
Require all granted
</Directory>
StartServers 2
CONF
    if [ "$(id -u)" = 0 ]; then printf 'User nobody\nGroup nogroup\n' >>httpd.conf; fi
    $RUN apache2 -d "$DIR" -f "$DIR/httpd.conf" -DFOREGROUND &
    up "$PORT"
}

# WORKERS PORT...: nginx; stdin has its configuration within `http`.
serve_nginx() {
    workers=$1
    shift
    if [ "$(id -u)" = 0 ]; then user="user nobody nogroup;"; else user=; fi
    mkdir tmp
    chmod 755 . tmp
    cat >nginx.conf <<CONF
$user
worker_processes $workers;
daemon off;
pid $DIR/nginx.pid;
error_log $DIR/error.log;
events { use epoll; }
http {
    access_log off;
    client_body_temp_path $DIR/tmp/1;
    proxy_temp_path $DIR/tmp/2;
    fastcgi_temp_path $DIR/tmp/3;
    uwsgi_temp_path $DIR/tmp/4;
    scgi_temp_path $DIR/tmp/5;
    sendfile on;
$(cat)
}
CONF
    $RUN nginx -e "$DIR/error.log" -p "$DIR" -c "$DIR/nginx.conf" &
    up "$@"
}

# Environment of PostgreSQL clients.
for_postgresql() {
    export PGUSER=lab PGDATABASE=postgres PGHOST=$ADDR PGPORT=$PORT PGCONNECT_TIMEOUT=20 PGSSLMODE=disable
}

# MAX-WAL-SIZE: starts PostgreSQL and waits until it answers. Its data are created once and copied.
serve_postgresql() {
    if [ ! -e "$KEEP/postgres.done" ]; then
        rm -rf "$KEEP/postgres"
        mkdir "$KEEP/postgres"
        theirs "$KEEP/postgres"
        as_other initdb -D "$KEEP/postgres" -U lab -A trust -N --locale=C -E SQL_ASCII >log 2>&1 || fail "initdb: $(tail -1 log)"
        echo "host all all 0.0.0.0/0 trust" >>"$KEEP/postgres/pg_hba.conf"
        : >"$KEEP/postgres.done"
    fi
    cp -a "$KEEP/postgres" data
    chmod 711 .
    serve_as_other $RUN postgres -D data -h "$ADDR" -p "$PORT" -k '' -c fsync=off -c max_wal_size="$1" >log &
    await "$PORT"
    turns=0
    until psql -qc 'select 1' >/dev/null 2>&1; do
        turns=$((turns + 1))
        [ $turns -lt 200 ] || fail "postgres does not answer"
        sleep 0.05
    done
}
