#!/usr/bin/env python3
"""Runs `k3-verify layers` in parts as HyperQueue jobs and joins the reports.

Needs the PyPI package `hyperqueue` (the engine and a Python API in one; no `hq` program). Without
--server a cluster of one worker is started on this machine and stopped again; with it, the jobs go
to a server that is running. Exit code: that of `k3-verify merge`, or the first failing task's.

    hyperqueue_layers.py 0..92 --model DIR --parts 16 --out OUT [--server DIR] [-- OPTION...]
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from hyperqueue import Client, Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.protocol import ResourceRequest

# Exit codes of a part that has a report to be joined: conforms, disagrees, incomplete.
WITH_REPORT = (0, 1, 4)


def arguments():
    own, rest = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, rest = own[:at], own[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("range", metavar="RANGE")
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--parts", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--program", default="k3-verify", help="the k3-verify program")
    parser.add_argument("--server", type=Path, help="folder of a running server")
    parser.add_argument("--cores", type=int, default=1, help="cores of a part")
    args = parser.parse_args(own)
    if args.parts < 1:
        parser.error("--parts: expected at least 1")
    return args, rest


def job_of(args, rest):
    """One task per part. A part that disagrees has done its work: its code is judged by merge."""
    job = Job(max_fails=None, name=f"layers {args.range}")
    for part in range(1, args.parts + 1):
        folder = (args.out / f"part-{part}").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        command = [args.program, "layers", args.range, "--model", str(args.model.resolve()),
                   "--part", f"{part}/{args.parts}", "--out", str(folder),
                   "--threads", str(args.cores), "--resume", *rest]
        keep = 'code=0; "$@" || code=$?; echo "$code" > "$0"; [ "$code" -le 1 ] || [ "$code" -eq 4 ]'
        job.program(["sh", "-c", keep, str(folder / "exit-code"), *command],
                    env=dict(os.environ), cwd=str(folder), name=f"part {part}",
                    stdout=str(folder / "stdout"), stderr=str(folder / "stderr"),
                    resources=ResourceRequest(cpus=args.cores))
    return job


def submit(client, args, rest):
    submitted = client.submit(job_of(args, rest))
    client.wait_for_jobs([submitted], raise_on_error=False)


def codes(args):
    """The exit code of every part; None where it never ended."""
    found = []
    for part in range(1, args.parts + 1):
        path = args.out / f"part-{part}" / "exit-code"
        found.append(int(path.read_text()) if path.exists() else None)
    return found


def main():
    args, rest = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.server:
        submit(Client(args.server), args, rest)
    else:
        with LocalCluster() as cluster:
            cluster.start_worker(WorkerConfig(cores=os.cpu_count()))
            submit(cluster.client(), args, rest)
    ended = codes(args)
    print(json.dumps({"parts": ended}))
    for part, code in enumerate(ended, 1):
        if code not in WITH_REPORT:
            log = (args.out / f"part-{part}" / "stderr")
            message = log.read_text().strip() if log.exists() else "it did not run"
            print(f"error: part {part} ended with {code}: {message}", file=sys.stderr)
            return code or 4
    parts = [str(args.out / f"part-{part}") for part in range(1, args.parts + 1)]
    merge = [args.program, "merge", *parts, "--out", str(args.out / "merged")]
    return subprocess.run(merge, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
