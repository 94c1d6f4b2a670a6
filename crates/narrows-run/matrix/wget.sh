# needs: wget python3
# scenarios: small big refused
case $role in
server)
    cd "$DATA"
    $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
    cd "$DIR"
    up "$PORT"
    ;;
client)
    case $scenario in
    refused)
        exits 4 $RUN wget -q -t 1 -O got "http://$ADDR:$PORT2/small"
        ;;
    *)
        exits 0 $RUN wget -q -t 1 -O got "http://$ADDR:$PORT/$scenario"
        same_file got "$DATA/$scenario"
        ;;
    esac
    ;;
esac
