# needs: ncat sha256sum
# scenarios: down up tls broker proxy refused
case $role in
server)
    case $scenario in
    down) $RUN ncat -l "$ADDR" "$PORT" --keep-open --sh-exec "cat $DATA/big" & ;;
    up) $RUN ncat -l "$ADDR" "$PORT" --keep-open --exec "$(command -v sha256sum)" & ;;
    tls) $RUN ncat --ssl -l "$ADDR" "$PORT" --keep-open --sh-exec "cat $DATA/big" & ;;
    broker) $RUN ncat -l "$ADDR" "$PORT" --broker & ;;
    *)
        ncat -l "$ADDR" "$PORT2" --keep-open --sh-exec "cat $DATA/big" &
        await "$PORT2"
        $RUN ncat -l "$ADDR" "$PORT" --proxy-type http &
        ;;
    esac
    up "$PORT"
    ;;
client)
    case $scenario in
    down)
        exits 0 $RUN ncat --recv-only "$ADDR" "$PORT" >got
        same_file got "$DATA/big"
        ;;
    up)
        exits 0 $RUN ncat "$ADDR" "$PORT" <"$DATA/big"
        ;;
    tls)
        exits 0 $RUN ncat --recv-only --ssl "$ADDR" "$PORT" >got
        same_file got "$DATA/big"
        ;;
    broker)
        # The broker passes on to one client what the other one sends.
        mkfifo says
        $RUN ncat "$ADDR" "$PORT" <says >first &
        exec 9>says
        echo one >&9
        turns=0
        # A client that connects later misses earlier messages, so repeat them.
        until [ -s second ]; do
            turns=$((turns + 1))
            [ $turns -lt 100 ] || fail "nothing is heard"
            [ -n "${second:-}" ] || { $RUN ncat --recv-only "$ADDR" "$PORT" >second & second=$!; }
            sleep 0.1
            echo one >&9
        done
        head -1 second
        exec 9>&-
        kill "$second"
        wait
        ;;
    proxy)
        exits 0 $RUN ncat --recv-only --proxy "$ADDR:$PORT" --proxy-type http "$ADDR" "$PORT2" >got
        same_file got "$DATA/big"
        ;;
    refused) exits 1 $RUN ncat --recv-only -w 5 "$ADDR" "$PORT3" ;;
    esac
    ;;
esac
