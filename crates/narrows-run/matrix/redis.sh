# needs: redis-server redis-cli redis-benchmark
# scenarios: small big load benchmark names subscribe refused killed
ask="$RUN redis-cli -h $ADDR -p $PORT"
case $role in
server)
    $RUN redis-server --port "$PORT" --bind "$ADDR" --save '' --protected-mode no --dir "$DIR" >log &
    up "$PORT"
    ;;
client)
    case $scenario in
    small)
        $ask ping
        $ask set key value
        $ask get key
        ;;
    big)
        # As hexadecimal, because the client appends a newline to a value.
        od -An -v -tx1 "$DATA/big" | tr -d ' \n' >hex
        $ask -x set big <hex
        $ask strlen big
        $ask get big | tr -d '\n' >got
        same_file got hex
        ;;
    load)
        # Pipelined commands, without waiting for replies.
        awk 'BEGIN { for (i = 0; i < 100000; i++) printf "SET key:%d value-of-%d-%d\r\n", i, i, i * 7919 }' >commands
        $ask --pipe <commands | tail -1
        $ask dbsize
        $ask get key:99999
        ;;
    benchmark)
        exits 0 $RUN redis-benchmark -h "$ADDR" -p "$PORT" -n 20000 -c 50 -q -t set,get >got
        exits 0 $RUN redis-benchmark -h "$ADDR" -p "$PORT" -n 20000 -c 5 -P 16 -q -t set,get >>got
        grep -o '^[SG]ET: ' got | sort | uniq -c
        ;;
    names)
        # The server's view of the peer, without the port, which differs each time.
        $ask client list | tr ' ' '\n' | grep -E '^(addr|laddr)=' | sed -e 's/\(addr=.*\):[0-9]*$/\1/'
        ;;
    subscribe)
        $ask subscribe news >heard &
        turns=0
        until [ "$($ask publish news hello)" = 1 ]; do
            turns=$((turns + 1))
            [ $turns -lt 200 ] || fail "nobody listens"
            sleep 0.05
        done
        turns=0
        until grep -q hello heard; do
            turns=$((turns + 1))
            [ $turns -lt 200 ] || fail "nothing heard"
            sleep 0.05
        done
        kill $!
        echo heard
        ;;
    refused)
        exits 1 $RUN redis-cli -h "$ADDR" -p "$PORT2" ping
        ;;
    killed)
        # A blocked client is killed; the server must notice that.
        $ask blpop never 0 &
        turns=0
        until [ "$($ask info clients | grep -c blocked_clients:1)" = 1 ]; do
            turns=$((turns + 1))
            [ $turns -lt 200 ] || fail "it does not block"
            sleep 0.05
        done
        kill -9 $!
        wait $!
        same 137 $? killed
        turns=0
        until [ "$($ask info clients | grep -c blocked_clients:0)" = 1 ]; do
            turns=$((turns + 1))
            [ $turns -lt 200 ] || fail "it is not seen to leave"
            sleep 0.05
        done
        echo left
        ;;
    esac
    ;;
esac
