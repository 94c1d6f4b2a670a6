# needs: vsftpd curl
# scenarios: get active put list
# A control connection and one per file, which either end may open. The server forks and sandboxes
# itself.
case $role in
server)
    mkdir -p empty home/up
    cp "$DATA/small" "$DATA/big" home/
    chmod 777 home/up
    chmod 755 . home
    { if [ "$(id -u)" != 0 ]; then echo run_as_launching_user=YES; fi
        cat <<CONF; } >ftp.conf
listen=YES
background=NO
listen_address=$ADDR
listen_port=$PORT
anonymous_enable=YES
no_anon_password=YES
anon_root=$DIR/home
anon_upload_enable=YES
anon_umask=000
write_enable=YES
secure_chroot_dir=$DIR/empty
connect_from_port_20=NO
xferlog_enable=NO
CONF
    $RUN vsftpd "$DIR/ftp.conf" &
    up "$PORT"
    ;;
client)
    at=ftp://$ADDR:$PORT
    case $scenario in
    get)
        exits 0 $RUN curl -sS -o got "$at/big"
        same_file got "$DATA/big"
        exits 0 $RUN curl -sS --disable-epsv -o got "$at/big"
        same_file got "$DATA/big"
        ;;
    active)
        # The server connects to the client.
        exits 0 $RUN curl -sS -P - -o got "$at/big"
        same_file got "$DATA/big"
        ;;
    put)
        exits 0 $RUN curl -sS -T "$DATA/big" "$at/up/one"
        same_file home/up/one "$DATA/big"
        exits 0 $RUN curl -sS -P - -T "$DATA/big" "$at/up/two"
        same_file home/up/two "$DATA/big"
        ;;
    list)
        exits 0 $RUN curl -sS -l "$at/"
        exits 78 $RUN curl -sS "$at/none"
        ;;
    esac
    ;;
esac
