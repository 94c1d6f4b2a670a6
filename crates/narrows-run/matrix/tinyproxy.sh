# needs: tinyproxy curl python3
# scenarios: get tunnel refused-behind
case $role in
server)
    cat >proxy.conf <<CONF
Port $PORT
Listen $ADDR
Timeout 30
MaxClients 50
LogLevel Error
LogFile "$DIR/proxy.log"
PidFile "$DIR/proxy.pid"
CONF
    (cd "$DATA" && exec python3 -m http.server --bind "$ADDR" "$PORT2" 2>/dev/null) &
    await "$PORT2"
    $RUN tinyproxy -d -c proxy.conf &
    up "$PORT"
    ;;
client)
    case $scenario in
    get)
        exits 0 $RUN curl -sS -x "http://$ADDR:$PORT" -o got "http://$ADDR:$PORT2/big"
        same_file got "$DATA/big"
        ;;
    tunnel)
        exits 0 $RUN curl -sS -p -x "http://$ADDR:$PORT" -o got "http://$ADDR:$PORT2/big"
        same_file got "$DATA/big"
        ;;
    refused-behind)
        exits 0 $RUN curl -sS -x "http://$ADDR:$PORT" -o got -w '%{http_code}\n' "http://$ADDR:$PORT3/big"
        ;;
    esac
    ;;
esac
