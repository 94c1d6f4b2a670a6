# needs: java javac
# scenarios: echo http refused options
case $role in
server)
    if [ ! -e "$KEEP/java.done" ]; then
        mkdir -p "$KEEP/java"
        cat >"$KEEP/java/Server.java" <<'JAVA'
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.util.*;

/** An echo server with one selector. */
public class Server {
    public static void main(String[] a) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(a[0], Integer.parseInt(a[1])), 200);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel one = listener.accept();
                    one.configureBlocking(false);
                    one.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(1 << 16));
                    continue;
                }
                SocketChannel one = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                if (key.isReadable()) {
                    if (one.read(buffer) < 0) {
                        one.close();
                        continue;
                    }
                    buffer.flip();
                }
                one.write(buffer);
                if (buffer.hasRemaining()) {
                    key.interestOps(SelectionKey.OP_WRITE);
                } else {
                    buffer.clear();
                    key.interestOps(SelectionKey.OP_READ);
                }
            }
        }
    }
}
JAVA
        cat >"$KEEP/java/Client.java" <<'JAVA'
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.security.*;
import java.util.*;

public class Client {
    public static void main(String[] a) throws Exception {
        String host = a[1];
        int port = Integer.parseInt(a[2]);
        byte[] data = Files.readAllBytes(Path.of(a[3]));
        switch (a[0]) {
            case "echo": echo(host, port, data); break;
            case "http": http(host, port, data); break;
            case "refused": refused(host, port); break;
            case "options": options(host, port); break;
        }
        System.exit(0);
    }

    static void echo(String host, int port, byte[] data) throws Exception {
        Selector selector = Selector.open();
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.connect(new InetSocketAddress(host, port));
        channel.register(selector, SelectionKey.OP_CONNECT);
        ByteBuffer out = ByteBuffer.wrap(data), in = ByteBuffer.allocate(data.length);
        while (in.hasRemaining() && selector.select(30000) > 0) {
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isConnectable()) channel.finishConnect();
                if (out.hasRemaining()) channel.write(out);
                while (in.hasRemaining() && channel.read(in) > 0) { }
                key.interestOps(SelectionKey.OP_READ | (out.hasRemaining() ? SelectionKey.OP_WRITE : 0));
            }
        }
        System.out.println("echo " + Arrays.equals(data, in.array()));
    }

    static void http(String host, int port, byte[] data) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        for (int i = 0; i < 3; i++) {
            HttpRequest q = HttpRequest.newBuilder(URI.create("http://" + host + ":" + port + "/big")).build();
            HttpResponse<byte[]> answer = client.send(q, HttpResponse.BodyHandlers.ofByteArray());
            System.out.println(answer.statusCode() + " " + Arrays.equals(data, answer.body()));
        }
    }

    static void refused(String host, int port) throws Exception {
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        try {
            channel.connect(new InetSocketAddress(host, port));
            Selector selector = Selector.open();
            channel.register(selector, SelectionKey.OP_CONNECT);
            selector.select(30000);
            channel.finishConnect();
            System.out.println("connected");
        } catch (ConnectException e) {
            System.out.println("refused");
        }
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(host, port), 5000);
            System.out.println("connected");
        } catch (ConnectException e) {
            System.out.println("refused");
        }
    }

    static void options(String host, int port) throws Exception {
        try (Socket s = new Socket(host, port)) {
            s.setTcpNoDelay(true);
            s.setKeepAlive(true);
            s.setSoTimeout(300);
            s.setTrafficClass(8);
            s.setSoLinger(true, 5);
            System.out.println(s.getTcpNoDelay() + " " + s.getKeepAlive() + " " + s.getSoTimeout() + " " + s.getTrafficClass() + " " + s.getSoLinger());
            System.out.println(s.getPort() == port && s.getInetAddress().getHostAddress().equals(host));
            try {
                s.getInputStream().read();
            } catch (SocketTimeoutException e) {
                System.out.println("timed out");
            }
            s.getOutputStream().write("hello".getBytes());
            System.out.println(new String(s.getInputStream().readNBytes(5)));
            s.shutdownOutput();
            System.out.println(s.getInputStream().read());
        }
    }
}
JAVA
        javac -d "$KEEP/java" "$KEEP/java/Server.java" "$KEEP/java/Client.java" || fail javac
        : >"$KEEP/java.done"
    fi
    if [ $scenario = http ]; then
        cd "$DATA"
        $RUN python3 -m http.server --bind "$ADDR" "$PORT" &
        cd "$DIR"
    else
        $RUN java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$KEEP/java" Server "$ADDR" "$PORT" &
    fi
    up "$PORT"
    ;;
client)
    [ $scenario = refused ] && PORT=$PORT2
    exits 0 $RUN java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$KEEP/java" Client $scenario "$ADDR" "$PORT" "$DATA/big" >got
    cat got
    ! grep -q -e false -e '^connected' got || fail "$(cat got)"
    ;;
esac
