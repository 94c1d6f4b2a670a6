# needs: ssh scp sshd ssh-keygen
# scenarios: small big status names refused forward
# The server re-executes itself for each connection, which the new process inherits.
options="-F none -i key -o UserKnownHostsFile=hosts -o StrictHostKeyChecking=no -o LogLevel=ERROR -o BatchMode=yes -o IdentityAgent=none"
case $role in
server)
    # As root, sshd needs this system folder.
    if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi
    ssh-keygen -q -t ed25519 -N '' -f host
    ssh-keygen -q -t ed25519 -N '' -f key
    cat >sshd_config <<CONF
ListenAddress $ADDR:$PORT
HostKey $DIR/host
AuthorizedKeysFile $DIR/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
CONF
    $RUN "$(command -v sshd)" -D -e -f "$DIR/sshd_config" &
    up "$PORT"
    ;;
client)
    shell="$RUN ssh $options -p $PORT $ADDR"
    case $scenario in
    small) $shell echo hello ;;
    big)
        exits 0 $RUN scp -q $options -P "$PORT" "$DATA/big" "$ADDR:$DIR/got"
        same_file got "$DATA/big"
        exits 0 $shell "cat '$DATA/big'" >back
        same_file back "$DATA/big"
        ;;
    status) exits 42 $shell 'cat >/dev/null; exit 42' <"$DATA/small" ;;
    names) $shell 'echo "$SSH_CONNECTION"' | awk '{ print $1, $3 }' ;;
    refused) exits 255 $RUN ssh $options -p "$PORT2" "$ADDR" true ;;
    forward)
        # Forwards a port through the connection.
        $RUN ssh $options -p "$PORT" -N -L "127.0.0.1:$PORT3:$ADDR:$PORT" "$ADDR" &
        await "$PORT3"
        exits 0 $RUN ssh $options -p "$PORT3" -o HostKeyAlias=other 127.0.0.1 echo through
        kill $!
        ;;
    esac
    ;;
esac
