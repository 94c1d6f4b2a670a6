# needs: rsync
# scenarios: pull push again compressed refused
# The daemon forks for each connection.
case $role in
server)
    mkdir store
    cat >rsyncd.conf <<CONF
use chroot = no
pid file = $DIR/rsyncd.pid
lock file = $DIR/rsyncd.lock
log file = $DIR/rsyncd.log
[data]
path = $DATA
exclude = sparse
[store]
path = $DIR/store
read only = no
CONF
    if [ "$(id -u)" = 0 ]; then printf 'uid = 0\ngid = 0\n' >>rsyncd.conf; fi
    $RUN rsync --daemon --no-detach --address="$ADDR" --port="$PORT" --config=rsyncd.conf &
    up "$PORT"
    ;;
client)
    at=rsync://$ADDR:$PORT
    case $scenario in
    pull | compressed)
        more=
        [ $scenario = compressed ] && more=-z
        exits 0 $RUN rsync -a $more "$at/data/" got/
        same_file got/big "$DATA/big"
        diff -r got/many "$DATA/many" && echo "many: right"
        ;;
    push)
        exits 0 $RUN rsync -a --exclude sparse "$DATA/" "$at/store/"
        same_file store/big "$DATA/big"
        diff -r store/many "$DATA/many" && echo "many: right"
        ;;
    again)
        # With an older copy present, both ends exchange data in turn.
        mkdir got
        { head -c 100000 "$DATA/big"; echo changed; tail -c +100500 "$DATA/big"; } >got/big
        exits 0 $RUN rsync -a --ignore-times "$at/data/" got/
        same_file got/big "$DATA/big"
        ;;
    refused) exits 10 $RUN rsync -a "rsync://$ADDR:$PORT2/data/" got/ ;;
    esac
    ;;
esac
