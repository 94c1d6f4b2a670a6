# needs: redis-server redis-cli redis-benchmark
# scenarios: load benchmark-1 benchmark-8
case $role in
server)
    $RUN redis-server --port "$PORT" --bind "$ADDR" --save '' --protected-mode no --dir "$DIR" >log &
    # One key for each line, as commands of the protocol.
    tr -d '\000\r' <"$DATA/big" | awk '{ key = "line:" NR; printf "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", length(key), key, length($0), $0 }' >commands
    tr -d '\000\r' <"$DATA/big" | awk 'END { print NR }' >count
    up "$PORT"
    ;;
client)
    case $scenario in
    load)
        begun=$(now)
        exits 0 $RUN redis-cli -h "$ADDR" -p "$PORT" --pipe <commands >got
        elapsed "$begun"
        same "$(cat count)" "$(redis-cli -h "$ADDR" -p "$PORT" dbsize)" keys
        ;;
    benchmark-*)
        # Values of 1 KB, which redis-benchmark fills with noise; about ten seconds of requests on a
        # link of 10 ms.
        clients=${scenario#benchmark-}
        exits 0 $RUN redis-benchmark -h "$ADDR" -p "$PORT" -n $((clients * 250)) -c "$clients" -d 1000 -r 1000 -t get,set --csv >got
        awk -F'"' '$2 == "SET" || $2 == "GET" { print "figure " tolower($2) "_per_s", $4; print "figure " tolower($2) "_p50_ms", $10 }' got
        ;;
    esac
    ;;
esac
