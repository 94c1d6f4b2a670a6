# needs: haproxy curl python3
# scenarios: small big many refused-behind
case $role in
server)
    cat >haproxy.cfg <<CONF
defaults
    mode tcp
    timeout connect 5s
    timeout client 50s
    timeout server 50s
frontend front
    bind $ADDR:$PORT
    default_backend back
backend back
    server one $ADDR:$PORT2
frontend nobody
    bind $ADDR:$PORT3
    default_backend none
backend none
    server two $ADDR:$PORT4
CONF
    (cd "$DATA" && exec python3 -m http.server --bind "$ADDR" "$PORT2") &
    await "$PORT2"
    $RUN haproxy -db -f haproxy.cfg &
    up "$PORT"
    ;;
client)
    case $scenario in
    refused-behind)
        exits 52 $RUN curl -sS -m 30 "http://$ADDR:$PORT3/small"
        ;;
    *) web ;;
    esac
    ;;
esac
