# needs: iperf3
# scenarios: up down
case $role in
server)
    $RUN iperf3 -s -B "$ADDR" -p "$PORT" >/dev/null &
    up "$PORT"
    ;;
client)
    way=
    [ $scenario = down ] && way=-R
    exits 0 $RUN iperf3 -c "$ADDR" -p "$PORT" -P 2 -n 50M $way -J >got
    grep -c '"sender"' got
    ;;
esac
