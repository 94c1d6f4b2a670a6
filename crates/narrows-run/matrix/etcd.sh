# needs: etcd etcdctl
# scenarios: put watch lease refused
# gRPC in Go: one connection with many streams that stay open.
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://$ADDR:$PORT
case $role in
server)
    $RUN etcd --data-dir "$DIR/etcd" --listen-client-urls "$ETCDCTL_ENDPOINTS" --advertise-client-urls "$ETCDCTL_ENDPOINTS" \
        --listen-peer-urls "http://$ADDR:$PORT2" --initial-advertise-peer-urls "http://$ADDR:$PORT2" \
        --initial-cluster "default=http://$ADDR:$PORT2" --unsafe-no-fsync --log-level error &
    await "$PORT"
    turns=0
    until etcdctl endpoint health >/dev/null 2>&1; do
        turns=$((turns + 1))
        [ $turns -lt 100 ] || fail "etcd does not answer"
        sleep 0.1
    done
    up "$PORT"
    ;;
client)
    value() { head -c $(($1 * 30000)) "$DATA/big" | base64 -w0; }
    case $scenario in
    put)
        for i in 1 5 9 13; do
            value $i | $RUN etcdctl put "k$i"
        done
        exits 0 $RUN etcdctl get k --prefix >got
        for i in 1 13 5 9; do printf 'k%s\n%s\n' $i "$(value $i)"; done >wanted
        same_file got wanted
        exits 0 $RUN etcdctl del k5
        exits 0 $RUN etcdctl get k5
        ;;
    watch)
        $RUN etcdctl watch k --prefix >heard &
        watching=$!
        turns=0
        # A put before the watch begins is not reported, so repeat it.
        until [ -s heard ]; do
            turns=$((turns + 1))
            [ $turns -lt 100 ] || fail "nothing is heard"
            etcdctl put k0 begin >/dev/null
            sleep 0.1
        done
        for i in 1 2 3 4; do value $i | $RUN etcdctl put "k$i"; done
        etcdctl put kend end >/dev/null
        turns=0
        until grep -q '^kend' heard; do
            turns=$((turns + 1))
            [ $turns -lt 100 ] || fail "the end is not heard"
            sleep 0.05
        done
        kill $watching
        wait $watching 2>/dev/null
        for i in 1 2 3 4; do
            same "$(value $i | sum)" "$(grep -A1 "^k$i\$" heard | tail -1 | tr -d '\n' | sum)" "k$i"
        done
        ;;
    lease)
        id=$($RUN etcdctl lease grant 60 | awk '{print $2}')
        $RUN etcdctl put k v --lease="$id"
        $RUN etcdctl lease revoke "$id" | sed "s/$id/ID/"
        exits 0 $RUN etcdctl get k
        ;;
    refused)
        exits 1 $RUN etcdctl --endpoints="http://$ADDR:$PORT3" --dial-timeout=2s --command-timeout=2s get k
        ;;
    esac
    ;;
esac
