# needs: git curl python3 file:/usr/lib/git-core/git-http-backend
# scenarios: dumb smart push refused
# git over HTTP: static files, and git-http-backend behind a server that passes the socket to it.
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@lab GIT_COMMITTER_NAME=lab GIT_COMMITTER_EMAIL=lab@lab
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
case $role in
server)
    git init -q -b main work
    cp -r "$DATA/many" work/
    head -c 4000000 "$DATA/big" >work/big
    git -C work add .
    git -C work commit -qm first
    git clone -q --bare work bare.git
    git -C bare.git config http.receivepack true
    git -C bare.git update-server-info
    mkdir cgi-bin
    cat >cgi-bin/git <<CGI
#!/bin/sh
export GIT_PROJECT_ROOT=$DIR GIT_HTTP_EXPORT_ALL=1
exec /usr/lib/git-core/git-http-backend
CGI
    chmod 755 cgi-bin cgi-bin/git .
    if [ "$(id -u)" = 0 ]; then
        # The server's programs run as nobody.
        theirs bare.git
        export HOME=$DIR
        git config --global --add safe.directory '*'
        chmod 644 .gitconfig
    fi
    cat >serve.py <<'PY'
import http.server, os
http.server.ThreadingHTTPServer((os.environ["ADDR"], int(os.environ["PORT"])), http.server.CGIHTTPRequestHandler).serve_forever()
PY
    $RUN python3 serve.py &
    up "$PORT"
    ;;
client)
    at=http://$ADDR:$PORT
    case $scenario in
    dumb) exits 0 $RUN git clone -q "$at/bare.git" got ;;
    smart | push) exits 0 $RUN git clone -q "$at/cgi-bin/git/bare.git" got ;;
    refused) exits 128 $RUN git clone -q "http://$ADDR:$PORT2/bare.git" got ;;
    esac
    if [ $scenario = push ]; then
        tail -c 3000000 "$DATA/big" >got/more
        git -C got add . && git -C got commit -qm second
        (cd got && exits 0 $RUN git -c http.postBuffer=100000000 push -q origin main) || exit 1
        same "$(git -C got rev-parse HEAD)" "$(git --git-dir=bare.git -c safe.directory='*' rev-parse main)" head
    fi
    if [ $scenario != refused ]; then
        git -C got fsck 2>&1
        git -C got rev-parse HEAD
        diff -r got/many "$DATA/many" && echo "many: right"
    fi
    ;;
esac
