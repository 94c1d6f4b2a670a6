# needs: nginx curl
# scenarios: get
# Responses of 200 KB, one after the other on one connection, without HTTP compression.
case $role in
server)
    mkdir parts
    split -b 200000 -d -a 4 "$DATA/big" parts/
    ls parts | wc -l >count
    serve_nginx 1 "$PORT" <<CONF
    default_type application/json;
    server { listen $ADDR:$PORT; root $DIR/parts; }
CONF
    ;;
client)
    last=$(printf '%04d' $(($(cat count) - 1)))
    mkdir got
    begun=$(now)
    exits 0 $RUN curl -sS -o "got/#1" "http://$ADDR:$PORT/[0000-$last]"
    elapsed "$begun"
    cat got/* >all
    same_file all "$DATA/big"
    ;;
esac
