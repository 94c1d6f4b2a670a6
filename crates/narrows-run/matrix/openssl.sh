# needs: openssl curl
# scenarios: get curl lines refused
# Encrypted from the first byte: nothing is compressed, and nothing changes.
case $role in
server)
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$DIR/key" -out "$DIR/cert" -days 2 -subj /CN=lab 2>/dev/null || fail "openssl req"
    how="-WWW"
    [ $scenario = lines ] && how=-rev
    cd "$DATA"
    $RUN openssl s_server -accept "$ADDR:$PORT" -cert "$DIR/cert" -key "$DIR/key" $how -quiet &
    cd "$DIR"
    up "$PORT"
    ;;
client)
    case $scenario in
    get)
        printf 'GET /big HTTP/1.0\r\n\r\n' | $RUN openssl s_client -connect "$ADDR:$PORT" -quiet -ign_eof >answer
        # The body follows the head of the response.
        tail -c "$BIG_LEN" answer >got
        same_file got "$DATA/big"
        ;;
    curl)
        exits 0 $RUN curl -sSk -o got "https://$ADDR:$PORT/big"
        same_file got "$DATA/big"
        ;;
    lines)
        mkfifo says
        $RUN openssl s_client -connect "$ADDR:$PORT" -quiet -tls1_2 <says >heard &
        exec 9>says
        for word in hello world; do
            echo $word >&9
            turns=0
            until grep -q "$(echo $word | rev)" heard; do
                turns=$((turns + 1))
                [ $turns -lt 200 ] || fail "no answer to $word"
                sleep 0.05
            done
        done
        exec 9>&-
        kill $!
        wait
        cat heard
        ;;
    refused) exits 1 $RUN openssl s_client -connect "$ADDR:$PORT2" </dev/null >/dev/null ;;
    esac
    ;;
esac
