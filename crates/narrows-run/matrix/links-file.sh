# needs: nc
# scenarios: up down
# One file in one direction, as in the text of 2023: two prepared programs with blocking calls.
case $role in
server)
    if [ $scenario = up ]; then
        $RUN nc -l "$ADDR" "$PORT" >received &
    else
        $RUN nc -N -l "$ADDR" "$PORT" <"$DATA/big" &
    fi
    server=$!
    await "$PORT"
    : >ready
    wait $server
    : >ended
    ;;
client)
    begun=$(now)
    if [ $scenario = up ]; then
        exits 0 $RUN nc -N "$ADDR" "$PORT" <"$DATA/big"
        await_file ended
        elapsed "$begun"
        same_file received "$DATA/big"
    else
        exits 0 $RUN nc -d "$ADDR" "$PORT" >got
        elapsed "$begun"
        same_file got "$DATA/big"
    fi
    ;;
esac
