# needs: curl python3
# scenarios: small big many refused unreachable killed server-killed few-descriptors
case $role in
server)
    cd "$DATA"
    $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
    echo $! >"$DIR/server.pid"
    cd "$DIR"
    up "$PORT"
    ;;
client)
    case $scenario in
    unreachable)
        # TEST-NET-1, which nobody has: what is said of it is the host's affair, but it is the same.
        $RUN curl -sS --connect-timeout 1 -o got http://192.0.2.1:9/
        echo "status $?"
        ;;
    few-descriptors)
        ulimit -Sn 32
        exits 0 $RUN curl -sS -o got "http://$ADDR:$PORT/big"
        same_file got "$DATA/big"
        ;;
    *) web ;;
    esac
    ;;
esac
