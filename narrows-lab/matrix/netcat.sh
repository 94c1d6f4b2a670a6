# needs: nc
# scenarios: small big refused
case $role in
server)
    $RUN nc -l "$ADDR" "$PORT" >received &
    server=$!
    await "$PORT"
    : >ready
    wait $server
    echo $? >status
    ;;
client)
    case $scenario in
    refused) exits 1 $RUN nc -N "$ADDR" "$PORT2" </dev/null ;;
    *)
        exits 0 $RUN nc -N "$ADDR" "$PORT" <"$DATA/$scenario"
        await_file status
        cat status
        same_file received "$DATA/$scenario"
        ;;
    esac
    ;;
esac
