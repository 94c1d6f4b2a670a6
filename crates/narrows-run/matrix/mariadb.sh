# needs: mariadbd mariadb mariadb-install-db
# scenarios: small big load names refused replication
# The server speaks first.
database() { # FOLDER PORT ID MORE...
    folder=$1 at=$2 id=$3
    shift 3
    if [ ! -e "$KEEP/mariadb.done" ]; then
        rm -rf "$KEEP/mariadb"
        mkdir "$KEEP/mariadb"
        theirs "$KEEP/mariadb"
        as_other mariadb-install-db --no-defaults --datadir="$KEEP/mariadb" --auth-root-authentication-method=normal \
            --skip-test-db >log 2>&1 || fail "mariadb-install-db: $(tail -1 log)"
        : >"$KEEP/mariadb.done"
    fi
    cp -a "$KEEP/mariadb" "$folder"
    chmod 711 .
    mkdir "$folder.run"
    theirs "$folder.run"
    cat >"$folder.sql" <<SQL
set sql_log_bin = 0;
create user 'lab'@'%';
grant all on *.* to 'lab'@'%' with grant option;
SQL
    serve_as_other $RUN mariadbd --no-defaults --datadir="$DIR/$folder" --port="$at" --bind-address="$SERVES" \
        --socket="$DIR/$folder.run/s" --pid-file="$DIR/$folder.run/pid" --server-id="$id" --log-bin="$folder" --skip-name-resolve \
        --init-file="$DIR/$folder.sql" --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=32M "$@" >"$folder.log" &
}
SERVES=$ADDR
sql="$RUN mariadb --no-defaults -h $ADDR -P $PORT -u lab --protocol=tcp --connect-timeout=20 -N"
case $role in
server)
    database primary "$PORT" 1
    up "$PORT"
    ;;
client)
    case $scenario in
    small)
        $sql -e 'select 6 * 7; select sleep(0.2)'
        exits 1 $sql -e 'select nothing'
        ;;
    big)
        $sql -e "select md5(seq), md5(seq * 7) from seq_1_to_300000" >got
        wc -c <got
        sum <got
        ;;
    load)
        {
            echo 'create database lab; use lab; create table t (n int, v varchar(100));'
            awk 'BEGIN { for (i = 0; i < 300; i++) { printf "insert into t values (%d, \"x\")", i; for (j = 0; j < 300; j++) printf ", (%d, \"value of %d and %d\")", j, i, j; print ";" } }'
            echo 'select count(*), sum(n), sum(length(v)) from t;'
        } >load.sql
        exits 0 $sql <load.sql
        ;;
    names)
        $sql -e 'select substring_index(user(), "@", -1), @@port > 0'
        ;;
    refused)
        exits 1 $RUN mariadb --no-defaults -h "$ADDR" -P "$PORT2" -u lab --protocol=tcp -e 'select 1'
        ;;
    replication)
        # A replica at this end, which follows the primary at the other.
        SERVES=$CLIENT_ADDR
        database replica "$PORT3" 2
        await "$PORT3"
        here="mariadb --no-defaults -h $SERVES -P $PORT3 -u lab --protocol=tcp --connect-timeout=20 -N"
        $here -e "change master to master_host='$ADDR', master_port=$PORT, master_user='lab', master_connect_retry=1; start slave"
        mariadb --no-defaults -h "$ADDR" -P "$PORT" -u lab --protocol=tcp -e 'create database lab; use lab; create table t as select seq n, md5(seq) h from seq_1_to_200000'
        turns=0
        until [ "$($here -e 'select count(*) from lab.t' 2>/dev/null)" = 200000 ]; do
            turns=$((turns + 1))
            [ $turns -lt 200 ] || fail "it does not follow: $($here -e 'show slave status' | tr '\n\t' '  ')"
            sleep 0.1
        done
        $here -e 'select count(*), bit_xor(crc32(h)) from lab.t; stop slave'
        ;;
    esac
    ;;
esac
