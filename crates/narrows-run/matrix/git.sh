# needs: git
# scenarios: clone push fetch refused
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@lab GIT_COMMITTER_NAME=lab GIT_COMMITTER_EMAIL=lab@lab
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
case $role in
server)
    git init -q -b main work
    cp -r "$DATA/many" work/
    head -c 10000000 "$DATA/big" >work/big
    git -C work add .
    git -C work commit -qm first
    git clone -q --bare work bare.git
    $RUN git daemon --reuseaddr --base-path="$DIR" --export-all --enable=receive-pack --listen="$ADDR" --port="$PORT" &
    up "$PORT"
    ;;
client)
    at=git://$ADDR:$PORT/bare.git
    case $scenario in
    clone)
        exits 0 $RUN git clone -q "$at" got
        git -C got fsck 2>&1
        git -C got rev-parse HEAD
        diff -r got/many "$DATA/many" && echo "many: right"
        ;;
    push)
        exits 0 $RUN git clone -q "$at" got
        tail -c 5000000 "$DATA/big" >got/more
        git -C got add . && git -C got commit -qm second
        (cd got && exits 0 $RUN git push -q origin main) || exit 1
        same "$(git -C got rev-parse HEAD)" "$(git -C bare.git rev-parse main)" head
        git -C bare.git fsck 2>&1
        ;;
    fetch)
        exits 0 $RUN git clone -q --depth 1 "$at" got
        echo more >work/more
        git -C work add . && git -C work commit -qm second && git -C work push -q ../bare.git main
        (cd got && exits 0 $RUN git fetch -q --unshallow) || exit 1
        git -C got rev-parse origin/main
        ;;
    refused) exits 128 $RUN git clone -q "git://$ADDR:$PORT2/bare.git" got ;;
    esac
    ;;
esac
