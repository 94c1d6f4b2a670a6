# needs: socat
# scenarios: big half-close fork nofork relay
case $role in
server)
    case $scenario in
    # The connection itself becomes stdin and stdout of another program.
    nofork) $RUN socat "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr" "EXEC:cat '$DATA/big',nofork" & ;;
    fork) $RUN socat "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr,fork" "EXEC:cat '$DATA/small'" & ;;
    relay)
        socat "TCP-LISTEN:$PORT2,bind=$ADDR,reuseaddr,fork" EXEC:cat &
        $RUN socat "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr,fork" "TCP:$ADDR:$PORT2" &
        await "$PORT2"
        ;;
    half-close) $RUN socat -t 30 "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr" EXEC:sha256sum & ;;
    big) $RUN socat -u "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr" "CREATE:received" & ;;
    esac
    await "$PORT"
    : >ready
    wait
    : >ended
    ;;
client)
    case $scenario in
    nofork)
        exits 0 $RUN socat -u "TCP:$ADDR:$PORT" CREATE:got
        same_file got "$DATA/big"
        ;;
    fork)
        for i in 1 2 3 4 5 6 7 8 9 10; do
            exits 0 $RUN socat -u "TCP:$ADDR:$PORT" CREATE:got.$i
            same_file got.$i "$DATA/small"
        done
        ;;
    half-close)
        # The answer comes after the end of the request.
        exits 0 $RUN socat -t 30 "FILE:$DATA/big!!CREATE:got" "TCP:$ADDR:$PORT"
        same "$(sha256sum <"$DATA/big")" "$(cat got)" answer
        ;;
    relay)
        exits 0 $RUN socat -t 30 "FILE:$DATA/big!!CREATE:got" "TCP:$ADDR:$PORT"
        same_file got "$DATA/big"
        ;;
    big)
        exits 0 $RUN socat -u "FILE:$DATA/big" "TCP:$ADDR:$PORT"
        await_file ended
        same_file received "$DATA/big"
        ;;
    esac
    ;;
esac
