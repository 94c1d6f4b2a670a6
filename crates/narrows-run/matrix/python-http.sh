# needs: python3
# scenarios: small big many refused
case $role in
server)
    cd "$DATA"
    $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
    cd "$DIR"
    up "$PORT"
    ;;
client)
    cat >get.py <<'PY'
import concurrent.futures, hashlib, sys, urllib.request
at, names = sys.argv[1], sys.argv[2:]
def get(name):
    try:
        with urllib.request.urlopen(f"{at}/{name}", timeout=50) as answer:
            return answer.status, hashlib.sha256(answer.read()).hexdigest()
    except OSError as e:
        return type(getattr(e, "reason", e)).__name__, None
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for name, (status, hash) in zip(names, pool.map(get, names)):
        print(name, status, hash)
PY
    case $scenario in
    many)
        names=$(for i in $(seq 64); do echo "many/$i"; done)
        $RUN python3 get.py "http://$ADDR:$PORT" $names >got
        for name in $names; do echo "$name 200 $(sha256sum <"$DATA/$name" | cut -c1-64)"; done >wanted
        same_file got wanted
        ;;
    refused)
        $RUN python3 get.py "http://$ADDR:$PORT2" small >got
        same "small ConnectionRefusedError None" "$(cat got)" refused
        ;;
    *)
        $RUN python3 get.py "http://$ADDR:$PORT" $scenario >got
        same "$scenario 200 $(sha256sum <"$DATA/$scenario" | cut -c1-64)" "$(cat got)" $scenario
        ;;
    esac
    ;;
esac
