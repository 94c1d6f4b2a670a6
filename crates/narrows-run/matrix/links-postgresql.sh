# needs: initdb postgres psql pg_dump pgbench
# scenarios: dump restore select-1 select-8
for_postgresql
case $role in
server)
    serve_postgresql 1GB
    case $scenario in
    select-*) pgbench -iq -s 5 >/dev/null 2>&1 || fail pgbench ;;
    *)
        # One row for each line.
        psql -Xqc 'create table t (n bigserial primary key, line text)'
        tr -d '\000\001\002\r' <"$DATA/big" >lines
        psql -Xqc "\\copy t (line) from lines (format csv, quote E'\\001', delimiter E'\\002')" || fail copy
        pg_dump -t t >dump
        ;;
    esac
    up "$PORT"
    ;;
client)
    case $scenario in
    dump)
        begun=$(now)
        exits 0 $RUN pg_dump -t t -f got
        elapsed "$begun"
        for file in got dump; do grep -a -v -e '^.restrict' -e '^.unrestrict' $file >$file.text; done
        same_file got.text dump.text
        ;;
    restore)
        psql -Xqc 'create database other'
        begun=$(now)
        exits 0 $RUN psql -Xq -d other -f dump >/dev/null
        elapsed "$begun"
        all='select count(*), sum(hashtext(line)::bigint) from t'
        same "$(psql -XAtqc "$all")" "$(psql -XAtq -d other -c "$all")" rows
        ;;
    select-*)
        exits 0 $RUN pgbench -n -S -c ${scenario#select-} -j 2 -T 5 >got
        awk '$1 == "tps" { print "figure transactions_per_s", $3 }' got
        grep failed got
        ;;
    esac
    ;;
esac
