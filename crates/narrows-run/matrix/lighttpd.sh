# needs: lighttpd curl
# scenarios: small big many refused killed
case $role in
server)
    cat >lighttpd.conf <<CONF
server.document-root = "$DATA"
server.bind = "$ADDR"
server.port = $PORT
server.errorlog = "$DIR/error.log"
server.network-backend = "sendfile"
server.max-worker = 2
CONF
    $RUN lighttpd -D -f lighttpd.conf &
    up "$PORT"
    ;;
client) web ;;
esac
