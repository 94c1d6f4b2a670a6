# A server that answers each line with the line in capitals.
# HOST, number of connections to serve, "greets" if it speaks first. Prints its port.
import socket, sys, threading

host, connections, greets = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ['greets']
listener = socket.create_server((host, 0))
print(listener.getsockname()[1], flush=True)


def serve(s):
    f = s.makefile('rwb')
    try:
        if greets:
            f.write(b'welcome ' * 5000)
            f.flush()
        for line in f:
            f.write(line.upper())
            f.flush()
    except OSError as e:
        print(type(e).__name__, flush=True)
    try:
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    s.close()


threads = []
for _ in range(connections):
    threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
    threads[-1].start()
listener.close()
for thread in threads:
    thread.join()
