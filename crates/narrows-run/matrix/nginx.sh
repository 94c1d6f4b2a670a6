# needs: nginx curl python3
# scenarios: small big many proxy-small proxy-big proxy-many proxy-refused names killed
# Two workers; the proxy registers its sockets with epoll before it connects them.
case $role in
server)
    serve_nginx 2 "$PORT" "$PORT2" <<CONF
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
CONF
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
