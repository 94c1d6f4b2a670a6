# needs: curl python3
# scenarios: small big many refused unreachable blackholed killed server-killed few-descriptors
case $role in
server)
    cd "$DATA"
    $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
    echo $! >"$DIR/server.pid"
    cd "$DIR"
    if [ $scenario = blackholed ]; then
        # A listener with a full queue, which answers no connection.
        python3 -c 'import os, socket, sys, time
at = os.environ["ADDR"], int(os.environ["PORT2"])
full = socket.create_server(at, backlog=0), socket.create_connection(at)
open("full", "w").close()
time.sleep(60)' &
        await_file full
    fi
    up "$PORT"
    ;;
client)
    case $scenario in
    unreachable)
        # TEST-NET-1, an unused network: the error depends on the host, but must be the same in both
        # runs.
        $RUN curl -sS --connect-timeout 1 -o got http://192.0.2.1:9/
        echo "status $?"
        ;;
    blackholed)
        exits 28 $RUN curl -sS --connect-timeout 1 -o got "http://$ADDR:$PORT2/small"
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
