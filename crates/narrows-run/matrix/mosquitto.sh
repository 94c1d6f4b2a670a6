# needs: mosquitto mosquitto_pub mosquitto_sub python3
# scenarios: qos0 qos1 qos2 will
# MQTT: many small messages to a connected subscriber, and the will of a client that is killed.
case $role in
server)
    printf 'listener %s %s\nallow_anonymous true\nmax_queued_messages 0\npersistence false\n' "$PORT" "$ADDR" >mosquitto.conf
    $RUN mosquitto -c mosquitto.conf &
    up "$PORT"
    ;;
client)
    # TOPIC ARGS...: subscribes in the background, and waits for the retained message.
    subscribe() {
        topic=$1
        mosquitto_pub -h "$ADDR" -p "$PORT" -r -t "$topic" -m begin
        shift
        $RUN mosquitto_sub -h "$ADDR" -p "$PORT" -t "$topic" -W 40 "$@" >heard &
        subscribed=$!
        turns=0
        until [ -s heard ]; do
            turns=$((turns + 1))
            [ $turns -lt 400 ] || fail "nothing is heard"
            sleep 0.05
        done
    }
    case $scenario in
    qos*)
        python3 -c '
for i in range(1000):
    print(f"{{\"id\": {i}, \"room\": {i % 7}, \"temperature\": {20 + i % 10 / 10}, \"note\": \"" + "as it was before " * 5 + "\"}")' >messages
        subscribe t -q "${scenario#qos}" -C 1001
        exits 0 $RUN mosquitto_pub -h "$ADDR" -p "$PORT" -t t -q "${scenario#qos}" -l <messages
        wait $subscribed
        same 0 $? subscriber
        tail -n +2 heard >got
        same_file got messages
        ;;
    will)
        subscribe last -C 2
        mosquitto_pub -h "$ADDR" -p "$PORT" -r -t other -m begin
        $RUN mosquitto_sub -h "$ADDR" -p "$PORT" -t other --will-topic last --will-payload died >other &
        dies=$!
        turns=0
        until [ -s other ]; do
            turns=$((turns + 1))
            [ $turns -lt 400 ] || fail "the other does not connect"
            sleep 0.05
        done
        kill -9 $dies
        wait $subscribed
        same 0 $? subscriber
        cat heard
        ;;
    esac
    ;;
esac
