# needs: nc socat
# scenarios: small big half-close refused
case $role in
server)
    # As a server nc closes the connection when its client has ended, even with unsent data.
    if [ $scenario = half-close ]; then
        $RUN socat -t 30 "TCP-LISTEN:$PORT,bind=$ADDR,reuseaddr" EXEC:sha256sum &
    else
        $RUN nc -l "$ADDR" "$PORT" >received &
    fi
    server=$!
    await "$PORT"
    : >ready
    wait $server
    # Renamed when complete, because the client waits for the name.
    echo $? >status.new
    mv status.new status
    ;;
client)
    case $scenario in
    refused) exits 1 $RUN nc -N "$ADDR" "$PORT2" </dev/null ;;
    half-close)
        exits 0 $RUN nc -N "$ADDR" "$PORT" <"$DATA/big" >got
        same "$(sha256sum <"$DATA/big")" "$(cat got)" answer
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
