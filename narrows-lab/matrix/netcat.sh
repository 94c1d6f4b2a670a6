# needs: nc
# scenarios: small big half-close refused
case $role in
server)
    if [ $scenario = half-close ]; then
        # Both ways at once: each end sends and receives until the other one ends.
        $RUN nc -N -l "$ADDR" "$PORT" <"$DATA/big" >received &
    else
        $RUN nc -l "$ADDR" "$PORT" >received &
    fi
    server=$!
    await "$PORT"
    : >ready
    wait $server
    echo $? >status
    ;;
client)
    case $scenario in
    refused) exits 1 $RUN nc -N "$ADDR" "$PORT2" </dev/null ;;
    half-close)
        exits 0 $RUN nc -N "$ADDR" "$PORT" <"$DATA/big" >got
        same_file got "$DATA/big"
        await_file status
        same_file received "$DATA/big"
        ;;
    *)
        exits 0 $RUN nc -N "$ADDR" "$PORT" <"$DATA/$scenario"
        await_file status
        cat status
        same_file received "$DATA/$scenario"
        ;;
    esac
    ;;
esac
