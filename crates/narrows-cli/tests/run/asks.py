# A client of answers.py: HOST PORT CONNECTIONS ROUNDS, "greets" if the server speaks first. Prints
# "begun" after the first round, and "right" if all answers were correct.
import socket, sys, time

host, port, connections, rounds = sys.argv[1], *map(int, sys.argv[2:5])
greets = sys.argv[5:] == ['greets']
for _ in range(connections):
    s = socket.create_connection((host, port))
    f = s.makefile('rwb')
    if greets:
        assert f.read(40000) == b'welcome ' * 5000
    for i in range(rounds):
        # Contains the first byte of a marker.
        line = b'%d words that come again and again ' % i * 60 + b'\xf9NR\xf9NRMK\r\x1a' + bytes([i % 7 + 240]) + b'\n'
        f.write(line)
        f.flush()
        got = f.readline()
        assert got == line.upper(), (i, len(got), got[:40])
        if i == 0:
            print('begun', flush=True)
        time.sleep(0.004)
    s.shutdown(socket.SHUT_WR)
    assert f.read() == b''
    f.close()
    s.close()
print('right')
