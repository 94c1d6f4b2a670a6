# needs: nginx curl
# scenarios: get
# Answers of 200 KB, one after the other on one connection; the server compresses nothing itself.
case $role in
server)
    mkdir tmp parts
    split -b 200000 -d -a 4 "$DATA/big" parts/
    ls parts | wc -l >count
    if [ "$(id -u)" = 0 ]; then user="user nobody nogroup;"; else user=; fi
    chmod 755 . tmp
    cat >nginx.conf <<CONF
$user
worker_processes 1;
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
    default_type application/json;
    server { listen $ADDR:$PORT; root $DIR/parts; }
}
CONF
    $RUN nginx -e "$DIR/error.log" -p "$DIR" -c "$DIR/nginx.conf" &
    up "$PORT"
    ;;
client)
    last=$(printf '%04d' $(($(cat count) - 1)))
    mkdir got
    begun=$(now)
    exits 0 $RUN curl -sS -o "got/#1" "http://$ADDR:$PORT/[0000-$last]"
    elapsed "$begun"
    cat got/* >all
    same_file all "$DATA/big"
    ;;
esac
