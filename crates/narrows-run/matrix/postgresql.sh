# needs: initdb postgres psql pgbench pg_dump
# scenarios: small big copy benchmark reconnect dump names refused killed
for_postgresql
case $role in
server)
    serve_postgresql 200MB
    up "$PORT"
    ;;
client)
    sql="$RUN psql -XAtq"
    case $scenario in
    small)
        $sql -c 'select 6 * 7'
        $sql -c 'select pg_sleep(0.2)'
        exits 1 $sql -c 'select nothing'
        ;;
    big)
        # 20 MB as one result.
        $sql -c "select md5(i::text), md5((i * 7)::text) from generate_series(1, 300000) i" >got
        wc -c <got
        sum <got
        ;;
    copy)
        $sql -c 'create table t (n int, h text)'
        awk 'BEGIN { for (i = 0; i < 200000; i++) printf "%d\tvalue of %d and %d\n", i, i * 31, i * 7919 }' >rows
        exits 0 $sql -c "\\copy t from rows"
        exits 0 $sql -c "\\copy (select * from t order by n) to got"
        same_file got rows
        ;;
    benchmark)
        exits 0 $RUN pgbench -iq -s 1 2>/dev/null >/dev/null
        exits 0 $RUN pgbench -S -c 8 -j 2 -t 200 >got
        grep -E 'actually processed|failed' got
        ;;
    reconnect)
        exits 0 $RUN pgbench -iq -s 1 2>/dev/null >/dev/null
        exits 0 $RUN pgbench -S -C -c 4 -t 25 >got
        grep -E 'actually processed|failed' got
        ;;
    dump)
        exits 0 $RUN pgbench -iq -s 2 2>/dev/null >/dev/null
        exits 0 $RUN pg_dump -f dumped
        $sql -c 'create database other'
        exits 0 $sql -d other -f dumped
        exits 0 $RUN pg_dump -d other -f again
        # Newer versions write a random token into each dump.
        for file in dumped again; do grep -v -e '^.restrict' -e '^.unrestrict' $file >$file.text; done
        same_file again.text dumped.text
        ;;
    names)
        $sql -c 'select inet_client_addr(), inet_server_addr(), inet_server_port() = current_setting($$port$$)::int'
        ;;
    refused)
        PGPORT=$PORT2
        exits 2 $sql -c 'select 1'
        ;;
    killed)
        # The backend of a killed client must end.
        $sql -c 'select pg_sleep(1), count(*) from generate_series(1, 100000000)' &
        turns=0
        busy="select count(*) from pg_stat_activity where query like 'select pg_sleep%'"
        until [ "$($sql -c "$busy")" = 1 ]; do
            turns=$((turns + 1))
            [ $turns -lt 100 ] || fail "it does not begin"
            sleep 0.05
        done
        kill -9 $!
        wait $!
        same 137 $? killed
        $sql -c "select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'"
        ;;
    esac
    ;;
esac
