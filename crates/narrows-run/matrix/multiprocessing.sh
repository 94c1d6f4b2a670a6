# needs: python3
# scenarios: queues values stranger
# Objects of a manager over TCP: pickles as messages, a thread for each connection, forked
# processes.
case $role in
server)
    cat >"$DIR/lab.py" <<'PY'
import hashlib, os, queue, sys
from multiprocessing import Pool
from multiprocessing.managers import BaseManager

at = os.environ["ADDR"], int(os.environ["PORT"])


class Manager(BaseManager):
    pass


def connected(key=b"lab"):
    manager = Manager(address=at, authkey=key)
    manager.connect()
    return manager


def work(_):
    manager = connected()
    tasks, results = manager.tasks(), manager.results()
    count = 0
    while (task := tasks.get()) is not None:
        results.put((task[0], hashlib.sha256(task[1]).hexdigest()))
        count += 1
    return count


def main():
    with open(os.environ["DATA"] + "/big", "rb") as f:
        data = f.read(5_000_000)
    what = sys.argv[1]
    if what == "serve":
        tasks, results, values = queue.Queue(), queue.Queue(), {}
        Manager.register("tasks", lambda: tasks)
        Manager.register("results", lambda: results)
        Manager.register("values", lambda: values, exposed=("get", "update", "__len__"))
        Manager(address=at, authkey=b"lab").get_server().serve_forever()
    for name in ("tasks", "results", "values"):
        Manager.register(name)
    if what == "queues":
        manager = connected()
        tasks, results = manager.tasks(), manager.results()
        with Pool(4) as pool:
            counts = pool.map_async(work, range(4))
            for i in range(120):
                tasks.put((i, data[i * 30000 : i * 30000 + 20000 + i * 100]))
            got = sorted(results.get(timeout=30) for _ in range(120))
            for _ in range(4):
                tasks.put(None)
            print(sum(counts.get(30)), hashlib.sha256(repr(got).encode()).hexdigest())
    elif what == "values":
        values = connected().values()
        values.update({"a": data})
        print(hashlib.sha256(values.get("a")).hexdigest())
    else:
        try:
            connected(b"wrong")
        except Exception as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main()
PY
    $RUN python3 lab.py serve &
    up "$PORT"
    ;;
client) exits 0 $RUN python3 lab.py $scenario ;;
esac
