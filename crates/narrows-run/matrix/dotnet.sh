# needs: dotnet python3
# scenarios: small big refused
case $role in
server)
    cd "$DATA"
    $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
    cd "$DIR"
    up "$PORT"
    ;;
client)
    [ $scenario = refused ] && PORT=$PORT2
    cat >client.fsx <<'FS'
let at, file = fsi.CommandLineArgs.[1], fsi.CommandLineArgs.[2]
try
    use client = new System.Net.Http.HttpClient()
    let got = client.GetByteArrayAsync(at).Result
    printfn "%b" (got = System.IO.File.ReadAllBytes file)
with e -> printfn "%s" (e.GetBaseException().GetType().Name)
FS
    name=$scenario
    [ $scenario = refused ] && name=small
    exits 0 $RUN dotnet fsi client.fsx "http://$ADDR:$PORT/$name" "$DATA/$name"
    ;;
esac
