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
    # Not the reports of each second: a slower run has more of them.
    grep -c -e '"sum_sent"' -e '"sum_received"' got
    ;;
esac
