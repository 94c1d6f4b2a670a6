# needs: cargo rustc file:/usr/share/cargo/registry/tokio-1.24.2/Cargo.toml
# scenarios: echo refused late
# tokio at both ends, from the distribution's packages: forty connections in several threads, half
# closes, a timeout.
case $role in
server)
    if [ ! -e "$KEEP/tokio.done" ]; then
        mkdir -p "$KEEP/tokio/src" "$KEEP/tokio/.cargo"
        cat >"$KEEP/tokio/.cargo/config.toml" <<'TOML'
[source.crates-io]
replace-with = "packages"
[source.packages]
directory = "/usr/share/cargo/registry"
TOML
        cat >"$KEEP/tokio/Cargo.toml" <<'TOML'
[package]
name = "lab"
version = "0.0.0"
edition = "2021"
[dependencies]
tokio = { version = "1", features = ["net", "io-util", "rt-multi-thread", "macros", "time"] }
[workspace]
TOML
        cat >"$KEEP/tokio/src/main.rs" <<'RS'
use std::{env, fs, sync::Arc, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn echo(at: String, data: Arc<Vec<u8>>, len: usize) -> std::io::Result<bool> {
    let (mut from, mut to) = TcpStream::connect(at).await?.into_split();
    let sent = Arc::clone(&data);
    let sending = tokio::spawn(async move {
        to.write_all(&sent[..len]).await?;
        to.shutdown().await
    });
    let mut got = Vec::new();
    from.read_to_end(&mut got).await?;
    sending.await??;
    Ok(got == data[..len])
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = env::args().collect();
    let at = args[2].clone();
    match args[1].as_str() {
        "serve" => {
            let listener = TcpListener::bind(at).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(answer(stream));
            }
        }
        "echo" => {
            let data = Arc::new(fs::read(&args[3])?);
            let len = |i: usize| if i < 3 { data.len() } else { 100_000 + i * 1000 };
            let all: Vec<_> = (0..40).map(|i| tokio::spawn(echo(at.clone(), Arc::clone(&data), len(i)))).collect();
            let mut right = 0;
            for one in all {
                right += usize::from(one.await??);
            }
            println!("{right} right");
        }
        "late" => {
            let mut stream = TcpStream::connect(at).await?;
            let read = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
            println!("{}", if read.is_err() { "late" } else { "something came" });
        }
        _ => println!("{:?}", TcpStream::connect(at).await.map_err(|e| e.kind()).map(drop)),
    }
    Ok(())
}
RS
        # The compiler may be installed in the user's home, but HOME differs here.
        theirs=$(getent passwd "$(id -u)" | cut -d: -f6)
        export RUSTUP_HOME="${RUSTUP_HOME:-$theirs/.rustup}" CARGO_HOME="$KEEP/tokio/home"
        (cd "$KEEP/tokio" && cargo build -q --offline) >log 2>&1 || fail "cargo: $(tail -3 log)"
        : >"$KEEP/tokio.done"
    fi
    $RUN "$KEEP/tokio/target/debug/lab" serve "$ADDR:$PORT" &
    up "$PORT"
    ;;
client)
    at=$PORT
    [ $scenario = refused ] && at=$PORT2
    exits 0 $RUN "$KEEP/tokio/target/debug/lab" $scenario "$ADDR:$at" "$DATA/big"
    ;;
esac
