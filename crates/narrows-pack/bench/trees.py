"""Packs and unpacks trees with narrows and its peers, interleaved, and keeps all samples as JSON.

usage: trees.py NARROWS OUT.json ROUNDS TREE...

The sources are in the page cache after the first way, whose round is not for figures. WORK names the folder to
write to (/tmp); HEAVY=0 leaves out the slowest ways, which otherwise have one round.
"""

import json, os, shutil, subprocess, sys, tempfile, time

narrows, out, rounds, trees = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
heavy = os.environ.get("HEAVY", "1") == "1"


def sh(text, cwd=None):
    begun = time.monotonic()
    before = os.times()
    subprocess.run(["bash", "-o", "pipefail", "-c", text], cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    after = os.times()
    return {"s": time.monotonic() - begun, "cpu": after.children_user + after.children_system - before.children_user - before.children_system}


samples = []
for tree in trees:
    work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/tmp"))
    top = os.path.basename(tree.rstrip("/"))
    parent = os.path.dirname(tree.rstrip("/"))
    ways = {
        "narrows fast": (f"{narrows} pack {top} -q -f -o {work}/x --mode fast", f"{narrows} unpack -q {work}/x"),
        "narrows balanced": (f"{narrows} pack {top} -q -f -o {work}/x", f"{narrows} unpack -q {work}/x"),
        "tar | zstd -1 -T0": (f"tar c {top} | zstd -q -1 -T0 -f -o {work}/x", f"zstd -dcq {work}/x | tar x"),
        "tar | zstd -3 -T0": (f"tar c {top} | zstd -q -3 -T0 -f -o {work}/x", f"zstd -dcq {work}/x | tar x"),
        "mksquashfs zstd -3": (f"rm -f {work}/x; mksquashfs {top} {work}/x -quiet -no-progress -comp zstd -Xcompression-level 3 -keep-as-directory", f"unsquashfs -q -n -d u {work}/x"),
    }
    if heavy:
        ways["narrows archive"] = (f"{narrows} pack {top} -q -f -o {work}/x --mode archive", f"{narrows} unpack -q {work}/x")
        ways["tar | zstd -19 --long=27 -T0"] = (f"tar c {top} | zstd -q -19 --long=27 -T0 -f -o {work}/x", f"zstd -dcq --long=27 {work}/x | tar x")
        ways["mksquashfs zstd -15"] = (f"rm -f {work}/x; mksquashfs {top} {work}/x -quiet -no-progress -comp zstd -keep-as-directory -b 1M", f"unsquashfs -q -n -d u {work}/x")
    for round in range(rounds):
        for name, (pack, unpack) in ways.items():
            if round > 0 and ("19" in name or "archive" in name or "-15" in name):
                continue
            p = sh(pack, cwd=parent)
            size = os.path.getsize(f"{work}/x")
            to = tempfile.mkdtemp(dir=work)
            u = sh(unpack, cwd=to)
            shutil.rmtree(to)
            samples.append({"tree": top, "way": name, "round": round, "bytes": size, "pack": p, "unpack": u})
            print(f"{top:12} {name:30} {size:>12} pack {p['s']:7.2f} s (cpu {p['cpu']:6.2f})  unpack {u['s']:6.2f} s (cpu {u['cpu']:6.2f})", flush=True)
    shutil.rmtree(work)
json.dump(samples, open(out, "w"), indent=1)
