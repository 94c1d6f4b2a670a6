//! Servers behind what is tested.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Serves each connection by a thread, for as long as the process lives. Returns the port, on 127.0.0.1.
///
/// # Panics
/// If the system gives no port.
pub fn serve(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(socket));
        }
    });
    port
}

/// Sends back what comes, until its end.
pub fn echo(mut socket: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = socket.read(&mut buffer) {
        if socket.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}
