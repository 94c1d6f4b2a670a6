# needs: php
# scenarios: small big upload select refused
case $role in
server)
    cat >route.php <<'PHP'
<?php
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    echo hash('sha256', file_get_contents('php://input'));
} else {
    readfile(getenv('DATA') . $_SERVER['REQUEST_URI']);
}
PHP
    # Bodies are kept in memory; the default limit is too small.
    PHP_CLI_SERVER_WORKERS=4 $RUN php -q -d memory_limit=1G -d post_max_size=0 -S "$ADDR:$PORT" route.php >/dev/null &
    up "$PORT"
    ;;
client)
    cat >client.php <<'PHP'
<?php
[$scenario, $data] = [$argv[1], getenv('DATA')];
$port = getenv($scenario === 'refused' ? 'PORT2' : 'PORT');
$at = 'http://' . getenv('ADDR') . ":$port";
ini_set('memory_limit', '1G');
ini_set('default_socket_timeout', '50');
switch ($scenario) {
case 'upload':
    $context = stream_context_create(['http' => ['method' => 'POST', 'header' => 'Content-Type: application/octet-stream', 'content' => file_get_contents("$data/big")]]);
    $right = file_get_contents("$at/", false, $context) === hash_file('sha256', "$data/big");
    break;
case 'select':
    // Eight non-blocking connects, and one select for all of them.
    $open = $got = [];
    for ($i = 1; $i <= 8; $i++) {
        $s = stream_socket_client('tcp://' . getenv('ADDR') . ":$port", $no, $why, 5, STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT);
        stream_set_blocking($s, false);
        [$open[$i], $got[$i], $ask[$i]] = [$s, '', "GET /many/$i HTTP/1.0\r\n\r\n"];
    }
    while ($open) {
        [$read, $write, $none] = [$open, array_filter($open, fn($i) => $ask[$i] !== '', ARRAY_FILTER_USE_KEY), null];
        if (!stream_select($read, $write, $none, 30)) { break; }
        foreach ($write as $i => $s) { $ask[$i] = substr($ask[$i], fwrite($s, $ask[$i])); }
        foreach ($read as $i => $s) {
            $got[$i] .= fread($s, 65536);
            if (feof($s)) { unset($open[$i]); }
        }
    }
    $right = !$open;
    foreach ($got as $i => $text) { $right = $right && explode("\r\n\r\n", $text, 2)[1] === file_get_contents("$data/many/$i"); }
    break;
case 'refused':
    $right = !@stream_socket_client('tcp://' . getenv('ADDR') . ":$port", $no, $why, 5);
    echo "$no\n";
    break;
default:
    $right = hash('sha256', file_get_contents("$at/$scenario")) === hash_file('sha256', "$data/$scenario");
}
exit($right ? 0 : 1);
PHP
    exits 0 $RUN php -q client.php $scenario
    ;;
esac
