# needs: uvicorn curl
# scenarios: small big many upload refused
case $role in
server)
    cat >app.py <<'PY'
import hashlib, os
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["method"] == "POST":
        hash, more = hashlib.sha256(), True
        while more:
            message = await receive()
            hash.update(message.get("body", b""))
            more = message.get("more_body", False)
        answer = hash.hexdigest().encode()
    else:
        with open(os.environ["DATA"] + scope["path"], "rb") as f:
            answer = f.read()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(answer)).encode())]})
    for at in range(0, max(len(answer), 1), 100_000):
        await send({"type": "http.response.body", "body": answer[at : at + 100_000], "more_body": at + 100_000 < len(answer)})
PY
    $RUN uvicorn --host "$ADDR" --port "$PORT" --log-level error --lifespan off app:app &
    up "$PORT"
    ;;
client) web ;;
esac
