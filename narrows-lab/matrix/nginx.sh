# needs: nginx curl python3
# scenarios: small big many proxy-small proxy-big proxy-many proxy-refused names killed
# Two workers; the proxy registers its sockets with epoll before it connects them.
case $role in
server)
    if [ "$(id -u)" = 0 ]; then user="user nobody nogroup;"; else user=; fi
    mkdir tmp
    chmod 755 . tmp
    cat >nginx.conf <<CONF
$user
worker_processes 2;
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
    tcp_nopush on;
    upstream kept { server $ADDR:$PORT2; keepalive 4; }
    server {
        listen $ADDR:$PORT;
        root $DATA;
        location /proxy/ { proxy_pass http://kept/; proxy_http_version 1.1; proxy_set_header Connection ""; }
        location /nobody/ { proxy_pass http://$ADDR:$PORT3/; }
        location = /names { return 200 "\$remote_addr \$server_addr\n"; }
    }
    server { listen $ADDR:$PORT2; root $DATA; }
}
CONF
    $RUN nginx -e "$DIR/error.log" -p "$DIR" -c "$DIR/nginx.conf" &
    up "$PORT" "$PORT2"
    ;;
client)
    case $scenario in
    names)
        exits 0 $RUN curl -sS "http://$ADDR:$PORT/names"
        ;;
    proxy-refused)
        exits 0 $RUN curl -sS -o got -w '%{http_code}\n' "http://$ADDR:$PORT/nobody/small"
        ;;
    proxy-*)
        scenario=${scenario#proxy-}
        PORT=$PORT/proxy
        web
        ;;
    *) web ;;
    esac
    ;;
esac
