# needs: gunicorn curl
# scenarios: small big many upload refused
# Three pre-forked workers on one listener.
case $role in
server)
    cat >app.py <<'PY'
import hashlib, os
def app(environ, start):
    if environ["REQUEST_METHOD"] == "POST":
        hash, body = hashlib.sha256(), environ["wsgi.input"]
        while part := body.read(1 << 16):
            hash.update(part)
        answer = hash.hexdigest().encode()
    else:
        with open(os.environ["DATA"] + environ["PATH_INFO"], "rb") as f:
            answer = f.read()
    start("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]
PY
    $RUN gunicorn -w 3 -b "$ADDR:$PORT" --worker-tmp-dir "$DIR" --log-level error app:app &
    up "$PORT"
    ;;
client) web ;;
esac
