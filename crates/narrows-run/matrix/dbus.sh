# needs: dbus-daemon dbus-send dbus-monitor python3
# scenarios: call signal stranger
# D-Bus over TCP. EXTERNAL authentication needs credentials from the kernel, which only unix sockets
# have.
bus() {
    printf '%s' "tcp:host=$ADDR,port=$PORT,family=ipv4"
}
case $role in
server)
    # In the scenario `stranger` only credentials from the kernel are accepted.
    auth=ANONYMOUS
    [ $scenario = stranger ] && auth=EXTERNAL
    cat >bus.conf <<CONF
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
<type>session</type>
<listen>tcp:host=$ADDR,bind=$ADDR,port=$PORT,family=ipv4</listen>
<auth>$auth</auth>
<allow_anonymous/>
<policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy>
</busconfig>
CONF
    $RUN dbus-daemon --nofork --config-file=bus.conf &
    up "$PORT"
    ;;
client)
    case $scenario in
    call)
        exits 0 $RUN dbus-send --bus="$(bus)" --print-reply=literal --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames
        exits 1 $RUN dbus-send --bus="$(bus)" --print-reply --dest=lab.nobody / lab.nobody.Call 2>error
        grep -o 'was not provided' error
        ;;
    signal)
        $RUN dbus-monitor --address "$(bus)" type=signal,interface=lab.lab >heard &
        monitor=$!
        turns=0
        # Signals sent before the monitor listens are lost, so repeat them.
        until grep -q 'member=Said' heard; do
            turns=$((turns + 1))
            [ $turns -lt 100 ] || fail "nothing is heard"
            $RUN dbus-send --bus="$(bus)" --type=signal / lab.lab.Said string:"$(head -c 200000 "$DATA/big" | base64 -w0 | head -c 100000)"
            sleep 0.05
        done
        kill $monitor
        wait $monitor 2>/dev/null
        same "$(head -c 200000 "$DATA/big" | base64 -w0 | head -c 100000 | sum)" \
            "$(sed -n 's/^ *string "\(.*\)"$/\1/p' heard | grep -v '^:' | head -1 | tr -d '\n' | sum)" signal
        ;;
    stranger)
        exits 0 $RUN python3 -c '
import os, socket
for user in ("0", "1000", str(os.getuid())):
    s = socket.create_connection((os.environ["ADDR"], int(os.environ["PORT"])), timeout=10)
    s.sendall(b"\0AUTH EXTERNAL " + user.encode().hex().encode() + b"\r\n")
    print("user", user, s.recv(200).split()[0].decode())'
        ;;
    esac
    ;;
esac
